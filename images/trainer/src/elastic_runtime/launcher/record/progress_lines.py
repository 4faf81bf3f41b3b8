"""A line on how far the training is, every so often, in the log of a run whose script says little itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

log = logging.getLogger(__name__)

EVERY = 30.0
"""Seconds between two such lines, at least."""
FEW = 10
"""Lines that ranks may write in that time, all together, and are still said to write little."""
MOST_METRICS = 4
"""In the line, those that were reported first."""


class Record(Protocol):
    """Interface of the record that is read."""

    @property
    def progress(self) -> tuple[int | None, Mapping[str, float], float | None, int]:
        """Newest step, newest value of each metric, newest throughput, ranks that train."""


class ProgressLines:
    """Log the progress of a training whose script prints little.

    Args:
        now: seconds of any clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._due = now() + EVERY
        self._step: int | None = None
        self._lines = 0

    def look(self, record: Record, lines: int) -> None:
        """Write one, if it is time.

        Args:
            record: of the run.
            lines: that ranks have written so far.
        """
        if self._now() < self._due:
            return
        self._due = self._now() + EVERY
        quiet, self._lines = lines - self._lines <= FEW, lines
        step, metrics, rate, ranks = record.progress
        moved, self._step = step is not None and step != self._step, step
        if moved and quiet and ranks:
            parts = [f"step {step}", *(f"{name} {value:.4g}" for name, value in list(metrics.items())[:MOST_METRICS])]
            parts += [] if rate is None else [f"{rate:.3g} steps/s"]
            log.info("%s, %d ranks", ", ".join(parts), ranks)
