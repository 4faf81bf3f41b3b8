"""Which size a plan wants at a moment, and until when. Pure.

Times of day are of the plan's zone. One that a day does not have, as clocks are put forward, is that much later; of one
that it has twice, the first counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import PlanWindow, SizePlan, minutes_of

_HORIZON = 9
"""Days to look back and forward: every window begins at least once a week."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan wants for a while."""

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
    """What the plan wants now.

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
    since, until, present = edges[0], edges[-1], _open(occurrences, edges[0])
    for edge in edges[1:]:
        if (found := _open(occurrences, edge)) == present:
            continue
        if edge > now:
            until = edge
            break
        since, present = edge, found
    return Planned(plan.windows[present.index].workers if present else plan.otherwise, since, until)


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
