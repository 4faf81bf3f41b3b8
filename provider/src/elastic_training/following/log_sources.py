"""A logger for each source of a run's lines, beside a task's own: Airflow's viewer filters by its name and level."""

from __future__ import annotations

import logging
from typing import Any

from elastic_training.following.rank_lines import Source

NAME = "elastic_training"
"""Before the source's name, where the task's logger has no children."""


class Sources:
    """Call it with a source.

    Args:
        log: the task's own, or a trigger's.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._loggers: dict[Source, Any] = {Source.OTHER: log}

    def __call__(self, source: Source) -> Any:
        """Its logger."""
        if source not in self._loggers:
            self._loggers[source] = self._named(source)
        return self._loggers[source]

    def _named(self, source: Source) -> Any:
        if isinstance(self._log, logging.Logger):  # Below Airflow 3: as its children they go where it goes.
            return self._log.getChild(source)
        if not hasattr(self._log, "bind"):
            return self._log
        import structlog  # a dependency of those versions of Airflow that log so

        return structlog.get_logger(f"{NAME}.{source}")
