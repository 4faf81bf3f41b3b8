"""How many workers a run shall have: what was asked for, within its bounds, and by its size plan. Pure.

Whoever asks last wins, a person, a task, or the plan when a window begins. There is one place in which the size stands,
so the plan writes it there, too, and what cannot be is brought back to what can.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from elastic_runtime.launcher.decision.size_plan import Planned, planned, zone_of
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import shortened

_SHOWN = 50
"""Characters of what is no number."""


@dataclass(frozen=True, slots=True)
class SizeStep:
    """What follows from one look."""

    wanted: int
    """Workers."""
    write: bool = False
    """Have that stand where sizes are asked for."""
    note: str | None = None
    """What happened, for people."""


class Sizing:
    """Remembers, from one look to the next, what it has seen and ordered.

    Args:
        spec: bounds, start, plan.
        window: the beginning of the plan's window that was carried out last, by this launcher or the one before.

    Raises:
        InvalidSettings: the plan's time zone is not known here.
    """

    def __init__(self, spec: RunSpec, window: datetime | None = None) -> None:
        self._bounds, self._plan = spec.workers, spec.size_plan
        self._wanted = spec.workers.start
        self._planned: Planned | None = None
        self._begun = self.window = window
        """:attr:`window` is of the plan's window that is sure to have been carried out: for the status."""
        self._asked: int | str | None = None
        self._pending: tuple[int | str | None, int] | None = None
        """What stood there, and what shall stand there instead."""
        if self._plan:
            zone_of(self._plan)

    def look(self, asked: int | str | None, now: datetime) -> SizeStep:
        """One look.

        Args:
            asked: workers that are asked for; text that is no number; None: nothing is there.
            now: aware.
        """
        self._asked = asked
        if self._plan and (began := self._window_begins(now)):
            self._pending = (asked, self._clamped(began.workers)) if asked != began.workers else None
            if self._pending:
                words = f"{began.workers} workers by the size plan, until {began.until.isoformat(timespec='minutes')}"
                return self._ordered(words)
        if self._pending and asked in (None, self._pending[0]):
            return SizeStep(self._wanted, write=asked is not None)
        self._pending, self.window = None, self._begun
        if asked is None:
            return SizeStep(self._wanted)
        if isinstance(asked, str):
            self._pending = (asked, self._wanted)
            return self._ordered(f"{shortened(asked, _SHOWN)!r} is not a number of workers: {self._wanted} as before")
        if (within := self._clamped(asked)) != asked:
            self._pending = (asked, within)
            bounds = f"{self._bounds.minimum} to {self._bounds.maximum}"
            return self._ordered(f"{asked} workers asked for, outside {bounds}: brought back to {within}")
        note = None if asked == self._wanted else f"{asked} workers asked for, {self._wanted} before"
        self._wanted = asked
        return SizeStep(asked, note=note)

    def go_back(self, workers: int) -> None:
        """Have that many in the place of what is asked for now, which cannot be had."""
        self._wanted = self._clamped(workers)
        self._pending = (self._asked, self._wanted)

    def _ordered(self, note: str) -> SizeStep:
        assert self._pending is not None
        self._wanted = self._pending[1]
        return SizeStep(self._wanted, write=True, note=note)

    def _window_begins(self, now: datetime) -> Planned | None:
        """The plan's window that has begun since the last look, or since the launcher before this one."""
        assert self._plan is not None
        if self._planned is None or not self._planned.since <= now < self._planned.until:
            self._planned = planned(self._plan, now)
        if self._begun is not None and self._planned.since <= self._begun:
            return None
        self._begun = self._planned.since
        return self._planned

    def _clamped(self, workers: int) -> int:
        return min(max(workers, self._bounds.minimum), self._bounds.maximum)
