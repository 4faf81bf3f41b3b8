"""How many workers a run shall have: what was asked for, within its bounds, and by its size plan. Pure.

Whoever asks last wins, a person, a task, or the plan when a window begins. There is one place in which the size stands,
so the plan writes it there, too, and what cannot be is brought back to what can.

A pause is a request, too. The size that stands there is 0 then, once the launcher has written it: Airflow's side does
not, since workers go only when their state is durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import PlanWindow, RunSpec, SizePlan, minutes_of
from elastic_runtime.run.status import Pause, shortened

_SHOWN = 50
"""Characters of what is no number."""
_HORIZON = 9
"""Days to look back and forward: every window begins at least once a week."""


@dataclass(frozen=True, slots=True)
class SizeWish:
    """The newest request for a size, as Airflow's side keeps it with the run."""

    name: str
    workers: int
    """The size that it came to; of a pause, the one that was asked for before."""
    pause: bool = False
    by: str = ""
    """Who has asked, for people; empty: not known."""


class Sizing:
    """Remembers, from one look to the next, what it has seen and ordered.

    Args:
        spec: bounds, start, plan.
        window: the beginning of the plan's window that was carried out last, by this launcher or the one before.
        pause: the pause that the launcher before knew of.

    Raises:
        InvalidSettings: the plan's time zone is not known here.
    """

    def __init__(self, spec: RunSpec, window: datetime | None = None, pause: Pause | None = None) -> None:
        self._bounds, self._plan = spec.workers, spec.size_plan
        self.wanted = spec.workers.start
        """Workers."""
        self.write = False
        """Since the last look: have that stand where sizes are asked for."""
        self.pause = SizeWish(pause.request, pause.workers, True, pause.by) if pause and not pause.refused else None
        """That is asked for; None: none is, or it is over."""
        self._refused = pause.request if pause and pause.refused else ""
        """Name of the request for a pause that could not be."""
        self._planned: Planned | None = None
        self._coming: tuple[tuple[datetime, int], ...] = ()
        self._begun = self.window = window
        """:attr:`window` is of the plan's window that is sure to have been carried out: for the status."""
        self._asked: int | str | None = None
        self._pending: tuple[int | str | None, int] | None = None
        """What stood there, and what shall stand there instead."""
        if self._plan:
            zone_of(self._plan)

    def look(self, asked: int | str | None, now: datetime, wish: SizeWish | None = None) -> str | None:
        """Follow what is asked for. Returns what happened, for people; None: nothing.

        Args:
            asked: workers that are asked for; text that is no number; None: nothing is there.
            now: aware.
            wish: the newest request, if it is known: nobody's run is resumed since a document cannot be read.
        """
        self._asked, self.write = asked, False
        if (note := self._look_at_pause(wish, now)) or self.pause:
            return note
        if self._plan and (began := self._window_begins(now)):
            self._pending = (asked, self._clamped(began.workers)) if asked != began.workers else None
            if self._pending:
                words = f"{began.workers} workers by the size plan, until {began.until.isoformat(timespec='minutes')}"
                return self._ordered(words)
        if self._pending and asked in (None, self._pending[0]):
            self.write = asked is not None
            return None
        self._pending, self.window = None, self._begun
        if asked is None:
            return None
        if isinstance(asked, str):
            self._pending = (asked, self.wanted)
            return self._ordered(f"{shortened(asked, _SHOWN)!r} is not a number of workers: {self.wanted} as before")
        if (within := self._within(asked, wish)) != asked:
            self._pending = (asked, within)
            bounds = f"{self._bounds.minimum} to {self._bounds.maximum}"
            return self._ordered(f"{asked} workers asked for, outside {bounds}: brought back to {within}")
        before, self.wanted = self.wanted, asked
        return None if asked == before else f"{asked} workers asked for, {before} before"

    def order(self, workers: int) -> None:
        """Have that many in the place of what is asked for now, until somebody asks for another number."""
        self.wanted = self._clamped(workers)
        self._pending = (self._asked, self.wanted)

    def coming(self, now: datetime) -> tuple[tuple[datetime, int], ...]:
        """Return the sizes that the plan sets in the next days, ascending, with the time of each."""
        return tuple(each for each in self._coming if each[0] > now)

    def refuse_pause(self) -> None:
        """Forget the pause that is asked for: it cannot be."""
        assert self.pause is not None
        self._refused, self.pause = self.pause.name, None

    def _look_at_pause(self, wish: SizeWish | None, now: datetime) -> str | None:
        """What has become of a pause since the last look, for people."""
        if wish is None or wish.name == self._refused:
            return None
        before, self.pause = self.pause, wish if wish.pause else None
        if self.pause and not before:
            return f"a pause asked for, {self.wanted} workers before"
        return self._resumed(before, wish, now) if before and not self.pause else None

    def _within(self, asked: int, wish: SizeWish | None) -> int:
        """Workers that can be had. 0 is what this launcher, or the one before, has written for a pause that is over."""
        return self._clamped(asked or (wish.workers if wish else 0))

    def _resumed(self, before: SizeWish, wish: SizeWish, now: datetime) -> str:
        """With the size that was named, or the one before the pause; then a window that has begun meanwhile counts."""
        self.wanted = self._clamped(wish.workers)
        if self._plan and wish.workers != before.workers:
            self._window_begins(now)
        self._pending = (self._asked, self.wanted) if self._asked != self.wanted else None
        self.write = self._pending is not None
        return f"resumed with {self.wanted} workers"

    def _ordered(self, note: str) -> str:
        assert self._pending is not None
        self.wanted, self.write = self._pending[1], True
        return note

    def _window_begins(self, now: datetime) -> Planned | None:
        """The plan's window that has begun since the last look, or since the launcher before this one."""
        assert self._plan is not None
        if self._planned is None or not self._planned.since <= now < self._planned.until:
            self._planned, *others = planned_sizes(self._plan, now)
            self._coming = tuple((each.since, self._clamped(each.workers)) for each in others)
        if self._begun is not None and self._planned.since <= self._begun:
            return None
        self._begun = self._planned.since
        return self._planned

    def _clamped(self, workers: int) -> int:
        return min(max(workers, self._bounds.minimum), self._bounds.maximum)


# Which size a plan wants at a moment, and until when. Pure.
#
# Times of day are of the plan's zone. One that a day does not have, as clocks are put forward, is that much later; of
# one that it has twice, the first counts.


@dataclass(frozen=True, slots=True)
class Planned:
    """Size that a plan sets for a period."""

    workers: int
    since: datetime
    """When the window began, or the time outside of all."""
    until: datetime


@dataclass(frozen=True, slots=True)
class _Occurrence:
    begin: datetime
    end: datetime
    index: int
    """Of the window: the first that is open counts."""


def zone_of(plan: SizePlan) -> ZoneInfo:
    """Raises InvalidSettings when the zone is not known here."""
    try:
        return ZoneInfo(plan.timezone)
    except (KeyError, ValueError, OSError):
        raise InvalidSettings(
            "size_plan.timezone",
            f"{plan.timezone!r} is not known where the launcher runs",
            "Write a name of the IANA database, as in 'Europe/Paris', or install tzdata in the trainer's image",
        ) from None


def planned(plan: SizePlan, now: datetime) -> Planned:
    """What the plan wants now. See :func:`planned_sizes`."""
    return planned_sizes(plan, now)[0]


def planned_sizes(plan: SizePlan, now: datetime) -> list[Planned]:
    """What the plan wants now, and what comes after it in :data:`_HORIZON` days.

    Args:
        plan: with at least one window.
        now: aware.

    Raises:
        InvalidSettings: the plan's zone is not known here.
    """
    zone = zone_of(plan)
    today = now.astimezone(zone).date()
    occurrences = [each for index, window in enumerate(plan.windows) for each in _around(window, index, today, zone)]
    edges = sorted({edge for each in occurrences for edge in (each.begin, each.end)})
    sizes = [(edge, _open(occurrences, edge)) for edge in edges]
    changes = [each for number, each in enumerate(sizes) if not number or each[1] != sizes[number - 1][1]]
    ends = [*(edge for edge, _ in changes[1:]), edges[-1]]
    found = [
        Planned(plan.windows[present.index].workers if present else plan.otherwise, since, until)
        for (since, present), until in zip(changes, ends, strict=True)
    ]
    return [each for number, each in enumerate(found) if each.until > now or number == len(found) - 1]


def _around(window: PlanWindow, index: int, today: date, zone: ZoneInfo) -> Iterator[_Occurrence]:
    start, end = minutes_of(window.start), minutes_of(window.end)
    for offset in range(-_HORIZON, _HORIZON + 1):
        day = today + timedelta(days=offset)
        if day.isoweekday() in window.days:
            begin = _moment(day, start, zone)
            over = _moment(day + timedelta(days=end <= start), end, zone)
            if begin < over:  # Clocks may be put forward over all of it.
                yield _Occurrence(begin, over, index)


def _moment(day: date, minutes: int, zone: ZoneInfo) -> datetime:
    days, rest = divmod(minutes, 24 * 60)
    local = datetime.combine(day + timedelta(days=days), time(rest // 60, rest % 60), zone)
    return local.astimezone(UTC)


def _open(occurrences: list[_Occurrence], moment: datetime) -> _Occurrence | None:
    found = [each for each in occurrences if each.begin <= moment < each.end]
    return min(found, key=lambda each: (each.index, -each.begin.timestamp()), default=None)
