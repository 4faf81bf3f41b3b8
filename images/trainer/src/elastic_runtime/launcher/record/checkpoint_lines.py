"""Checkpoints in the log of a run: each is an event of the status, and the log has a short line every so often."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

log = logging.getLogger(__name__)
EVERY = timedelta(seconds=60)
"""Between two such lines, at least; a hand-over, the first, and the first after one that failed are told at once."""


class CheckpointLines:
    """Add an event for each checkpoint, and log one now and then.

    Args:
        now: wall clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._due: datetime | None = None
        self._untold = 0

    def written(self, step: int, seconds: float, *, handover: bool) -> None:
        """A durable checkpoint was written within so many seconds."""
        if handover:
            log.info("hand-over checkpoint of step %d in %.2f s", step, seconds)
            return
        if self._due is not None and self._now() < self._due:
            self._untold += 1
            return
        more = f", after {self._untold} others" if self._untold else ""
        self._due, self._untold = self._now() + EVERY, 0
        log.info("checkpoint of step %d in %.2f s%s", step, seconds, more)

    def failed(self) -> None:
        """One was not written, of which others tell."""
        self._due = None
