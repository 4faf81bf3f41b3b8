"""A deadline, as a user writes it: when a training shall be done, and what it may cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import EARLIEST, LATEST
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run import deadline as spec
from elastic_training.settings.size_plan import check_zone
from elastic_training.settings.templating import Settings, all_known
from elastic_training.settings.values import real_number
from elastic_training.settings.workers import Workers

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_STAND_IN = "2000-01-01T00:00Z"
"""For a time that is not known at parse."""


@dataclass(frozen=True, slots=True, repr=False)
class Deadline(Settings):
    """When a training shall be done, or what it may cost. The launcher sets the number of workers accordingly.

    It needs the number of steps: ``report(step, of=...)``, or GlobalBatches with epochs.
    """

    by: str | datetime | Any | None = None
    """Time of day, the next one after the run is created, as in ``"06:00"``; or date and time, ISO 8601. None: as soon
    as the budget allows."""
    time_zone: str | None = None
    """A name of the IANA database, as in ``"Europe/Berlin"``. Needed for times without an offset."""
    budget: float | str | Any | None = None
    """Dollars for the workers of the run, which is stopped before it costs more. None: no limit."""
    price: float | str | Any | None = None
    """Dollars an hour of one worker. None: that of ``workers.machine`` in the price book."""

    def __post_init__(self) -> None:
        self.known(by=_STAND_IN, time_zone="UTC", budget=1.0, price=1.0).spec(utc_now(), 1.0)

    def check_known(self, workers: Workers) -> None:
        """At parse: raises InvalidSettings if there can be no price for the budget."""
        if self.budget is not None and self.price is None and workers.machine is None:
            remedy = "Write price=, dollars an hour of one worker, or workers.machine and price_book"
            raise InvalidSettings("deadline.budget", "the price of a worker is not known", remedy)

    @all_known()
    def spec(self, now: datetime, price: float | None) -> spec.DeadlineSpec:
        """Return the launcher's specification. Raise InvalidSettings, also for rendered values.

        Args:
            now: when the run is created, aware.
            price: by the price book, in dollars an hour of one worker.
        """
        if self.time_zone is not None:
            check_zone(self.time_zone, "deadline.time_zone")
        by = None if self.by is None else self._moment(self.by, now)
        return spec.DeadlineSpec(
            by, _dollars("budget", self.budget), _dollars("price", self.price) or price, self.time_zone or "UTC"
        )

    def _moment(self, by: Any, now: datetime) -> datetime:
        zone = ZoneInfo(self.time_zone) if self.time_zone else None
        if isinstance(by, str) and (found := _TIME.fullmatch(by)):
            if zone is None:
                raise _unclear(by, "has no time zone", 'Write time_zone="Europe/Berlin"')
            today, clock = now.astimezone(zone).date(), time(int(found[1]), int(found[2]), tzinfo=zone)
            days = (datetime.combine(today + timedelta(days=more), clock).astimezone(UTC) for more in (0, 1))
            return next(each for each in days if each > now)
        try:
            moment = by if isinstance(by, datetime) else datetime.fromisoformat(str(by))
        except ValueError:
            remedy = 'Write a time of day, "06:00", or a date and time, "2026-11-28T06:00"'
            raise _unclear(by, "is not a time", remedy) from None
        if moment.tzinfo is None and zone is None:
            raise _unclear(by, "has no time zone", 'Write time_zone="Europe/Berlin"')
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        if not EARLIEST < moment.year < LATEST:
            raise _unclear(by, f"is not between the years {EARLIEST} and {LATEST}", "Write another one")
        return moment.astimezone(UTC)


def _dollars(name: str, value: Any) -> float | None:
    if value is None:
        return None
    return real_number(f"deadline.{name}", value, least=spec.LEAST_DOLLARS, most=spec.MOST_DOLLARS)


def _unclear(by: Any, problem: str, remedy: str) -> InvalidSettings:
    return InvalidSettings("deadline.by", f"{str(by)[:50]!r} {problem}", remedy)
