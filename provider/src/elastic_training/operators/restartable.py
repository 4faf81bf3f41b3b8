"""Trainings whose script may be started again for each world, instead of going from world to world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from elastic_runtime.run.spec import RunSpec
from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.settings.recovery import Restart, check_restartable, restart_of
from elastic_training.settings.templating import is_template

MARGIN = 5.0
"""Seconds that a worker that leaves has beyond those of its script."""


class RestartableOperator(ElasticTrainingOperator):
    """Base of the operators that take ``restart``.

    Args:
        restart: How the ranks of a script that is started again at each change are ended; the next ones begin at its
            newest checkpoint. None: ranks go from world to world in place. Templated.
        kwargs: see :class:`~elastic_training.operators.elastic_training.ElasticTrainingOperator`.
    """

    restarting_engine: ClassVar[str]
    """Engine with ``restart``."""
    template_fields: Sequence[str] = (*ElasticTrainingOperator.template_fields, "restart")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **ElasticTrainingOperator.template_fields_renderers,
        "restart": "json",
    }

    def __init__(self, *, restart: Restart | Mapping[str, Any] | Any | None = None, **kwargs: Any) -> None:
        self.restart = restart
        super().__init__(**kwargs)

    def check_what_is_known(self) -> None:
        """Raises InvalidSettings for what cannot work, whatever templates and other tasks yield."""
        super().check_what_is_known()
        if self.restart is not None and not is_template(self.restart):
            self.restart = restart_of(self.restart)
            check_restartable(self.command, warm=self.warm)

    @override
    def spec(self, name: str, folder: str | None = None, *, start_over: bool = False) -> RunSpec:
        made = super().spec(name, folder, start_over=start_over)
        if self.restart is None:
            return made
        check_restartable(made.command, warm=made.warm)
        restart = restart_of(self.restart).spec()
        leave = max(made.timing.leave_grace, restart.grace + MARGIN)
        timing = replace(made.timing, leave_grace=leave)
        return replace(made, engine=self.restarting_engine, restart=restart, timing=timing)
