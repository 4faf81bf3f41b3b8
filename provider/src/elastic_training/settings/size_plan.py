"""A size plan, as a user writes it: how many workers at which times, in a named time zone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import pendulum
from croniter import CroniterError, croniter  # type: ignore[import-untyped]
from pendulum.tz.exceptions import InvalidTimezone

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run import spec
from elastic_training.settings.templating import Settings, is_template
from elastic_training.settings.values import IntOrTemplate, whole_number
from elastic_training.settings.workers import Workers

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, repr=False)
class SizeWindow(Settings):
    """A time, each day or on some days of the week, in which the training has another size."""

    workers: IntOrTemplate
    """Wanted then, within the training's bounds."""
    start: str | None = None
    """Time of day, as in ``"22:00"``."""
    end: str | None = None
    """Time of day; at or before ``start`` it is one of the next day. ``"24:00"``: midnight."""
    days: str | Sequence[str] = DAYS
    """On which the window begins, as in ``["mon", "tue"]`` or ``"mon-fri"``."""
    cron: str | None = None
    """Instead of ``start`` and ``days``: when it begins, as in ``"0 22 * * 1-5"``. Day of the month and month must be
    ``*``."""
    lasting: timedelta | None = None
    """With ``cron``, instead of ``end``: how long, by the clock on the wall; up to a day."""

    def __post_init__(self) -> None:
        if not is_template(self.workers):
            whole_number("size_plan.windows.workers", self.workers, least=1)
        if not any(is_template(each) for each in (self.start, self.end, self.days, self.cron)):
            self._times()

    def spec(self) -> list[spec.PlanWindow]:
        """For the launcher, one for each time of day. Raises InvalidSettings."""
        workers = whole_number("size_plan.windows.workers", self.workers, least=1)
        return [spec.PlanWindow(workers, start, end, days) for start, end, days in self._times()]

    def _times(self) -> list[tuple[str, str, tuple[int, ...]]]:
        if self.cron is not None:
            return self._cron_times(self.cron)
        if self.start is None or self.end is None or self.lasting is not None:
            raise InvalidSettings(
                "size_plan.windows", f"{self!r} has not both start and end", "Write start and end, or cron and lasting"
            )
        spec.minutes_of(self.start)
        spec.minutes_of(self.end)
        return [(self.start, self.end, weekdays(self.days))]

    def _cron_times(self, cron: str) -> list[tuple[str, str, tuple[int, ...]]]:
        field, remedy = "size_plan.windows.cron", 'Write minute, hour, * * and days of the week, as in "0 22 * * 1-5"'
        if self.start is not None or self.end is not None or self.days != DAYS:
            raise InvalidSettings(field, f"{cron!r} has start, end or days beside it", "Write cron and lasting alone")
        if self.lasting is None or not timedelta(0) < self.lasting < _DAY or self.lasting % timedelta(minutes=1):
            problem = f"{self.lasting!r} is not whole minutes of less than a day"
            raise InvalidSettings("size_plan.windows.lasting", problem, "Write a timedelta, as in timedelta(hours=8)")
        try:
            (minutes, hours, month_days, months, week, *more), _ = croniter.expand(cron)
        except (CroniterError, ValueError, AttributeError, TypeError) as error:
            raise InvalidSettings(field, f"{cron!r} cannot be read: {error}", remedy) from None
        if more or [month_days, months] != [["*"], ["*"]] or "#" in cron or "l" in cron.lower():
            raise InvalidSettings(field, f"{cron!r} does not begin in every week alike", remedy)
        days = tuple(range(1, 8)) if week == ["*"] else tuple(sorted({int(day) or 7 for day in week}))
        begins = [
            60 * int(hour) + int(minute)
            for hour in (range(24) if hours == ["*"] else hours)
            for minute in (range(60) if minutes == ["*"] else minutes)
        ]
        lasting = int(self.lasting.total_seconds()) // 60
        return [(_clock(begin), _clock((begin + lasting) % (24 * 60)), days) for begin in begins]


@dataclass(frozen=True, slots=True, repr=False)
class SizePlan(Settings):
    """How many workers at which times.

    Carried out by the launcher, so that it holds while Airflow is down. What somebody asks for wins until the next
    window begins or ends.
    """

    windows: Any
    """A list of :class:`SizeWindow`; of two that are open the first counts."""
    otherwise: IntOrTemplate
    """Workers outside of all windows."""
    timezone: str
    """A name of the IANA database, as in ``"Asia/Shanghai"``."""

    def __post_init__(self) -> None:
        if not is_template(self.otherwise):
            whole_number("size_plan.otherwise", self.otherwise, least=1)
        if not is_template(self.windows) and (
            isinstance(self.windows, str)
            or not isinstance(self.windows, Sequence)
            or not self.windows
            or not all(isinstance(each, SizeWindow) or is_template(each) for each in self.windows)
        ):
            remedy = 'Write windows=[SizeWindow(workers=8, start="22:00", end="06:00")]'
            raise InvalidSettings("size_plan.windows", f"{self.windows!r} is not a list of windows", remedy)
        if not is_template(self.timezone):
            check_zone(self.timezone)

    def check_known(self, workers: Workers) -> None:
        """At parse: raises InvalidSettings when a size is out of bounds, as far as all of them are known."""
        if is_template(self.windows) or any(map(is_template, self.windows)):
            return
        values = [getattr(each, field.name) for each in (self, workers, *self.windows) for field in fields(each)]
        if not any(map(is_template, values)):
            self.spec().check(workers.spec())

    def spec(self) -> spec.SizePlan:
        """Return the launcher's specification. Raise InvalidSettings, also for rendered values."""
        self.__post_init__()
        windows = tuple(each for window in self.windows for each in window.spec())
        return spec.SizePlan(self.timezone, whole_number("size_plan.otherwise", self.otherwise, least=1), windows)


def check_zone(name: object, field: str = "size_plan.timezone") -> None:
    """Raises InvalidSettings when there is no such time zone."""
    try:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", name):
            raise InvalidTimezone(str(name))
        pendulum.timezone(name)
    except (InvalidTimezone, ValueError, OSError):
        remedy = "Write a name of the IANA database, as in 'Asia/Shanghai'"
        raise InvalidSettings(field, f"{name!r} is not a time zone", remedy) from None


def weekdays(days: object) -> tuple[int, ...]:
    """Parse days of the week into numbers, Monday is 1. Raise InvalidSettings."""
    first, dash, last = days.partition("-") if isinstance(days, str) else ("", "", "")
    names = days if isinstance(days, list | tuple) else (first, last) if dash else (first,)
    if not names or not all(each in DAYS for each in names):
        remedy = 'Write a list, as in ["mon", "tue"], or a range, as in "mon-fri"'
        raise InvalidSettings("size_plan.windows.days", f"{days!r} does not consist of days of the week", remedy)
    numbers = [DAYS.index(each) + 1 for each in names]
    if dash:
        numbers = [(numbers[0] - 1 + more) % 7 + 1 for more in range((numbers[1] - numbers[0]) % 7 + 1)]
    return tuple(sorted(set(numbers)))


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
