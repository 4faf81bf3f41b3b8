"""Requests for the stack traces of all ranks, forwarded to each worker once, at a limited rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.run.status import EventKind

PAUSE = 10.0
"""Seconds between two dumps, at least: each is a hundred lines a rank, or more. Requests that come sooner are one."""


class Asked(Protocol):
    """Source of requests for stack traces."""

    def stacks_asked(self) -> str | None:
        """Return another text after each new request; None: there was none."""


class Workers(Protocol):
    """The workers that write stacks."""

    def dump_stacks(self) -> int:
        """Make the ranks of this worker write their stacks."""


class StackDumps:
    """Forward requests for stacks to the workers, at a limited rate.

    Args:
        asked: where requests are; what is there at the first look was for the launcher before.
        workers: that run ranks.
        record: of the run.
        now: seconds of any clock.
    """

    def __init__(self, asked: Asked, workers: Workers, record: RunRecord, now: Callable[[], float]) -> None:
        self._asked, self._workers, self._record, self._now = asked, workers, record, now
        self._seen: str | None = None
        self._looked = False
        self._due = 0.0

    def look(self) -> None:
        """Carry out a request that is new."""
        asked, now = self._asked.stacks_asked(), self._now()
        if not self._looked:
            self._looked, self._seen = True, asked
        if asked == self._seen or now < self._due:
            return
        self._seen, self._due = asked, now + PAUSE
        if asked is not None:
            count = self._workers.dump_stacks()
            self._record.event(EventKind.STACKS, f"the stacks of {count} ranks are in the log")
