"""A price book, and what a run costs by it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.traces.policy import Job
from benchmarks.traces.simulator import Outcome
from benchmarks.traces.trace import HOUR, Trace
from elastic_runtime.errors import InvalidDocument, InvalidSettings

SHIPPED = Path(__file__).resolve().parent / "prices.toml"


@dataclass(frozen=True, slots=True)
class Price:
    """Of one machine, in dollars an hour."""

    cloud: str
    instance: str
    region: str
    on_demand: float
    spot: float
    date: date
    """When it was looked up."""
    source: str

    @property
    def name(self) -> str:
        """Unique in a book."""
        return f"{self.cloud}/{self.instance}"


@dataclass(frozen=True, slots=True)
class Bill:
    """Dollars, for the work that a run did and kept."""

    spot: float
    """All machines of the trace, from their first moment to their last."""
    on_demand: float
    """As many machines as the trace has at most, at full rate for as long as that work takes, nothing ever lost."""

    @property
    def ratio(self) -> float | None:
        """Spot by on-demand; None when nothing was trained."""
        return self.spot / self.on_demand if self.on_demand else None


def read_prices(path: Path = SHIPPED) -> Mapping[str, Price]:
    """Prices by :attr:`Price.name`.

    Raises:
        InvalidDocument: the file is no price book; says what is wrong where.
    """
    try:
        clouds = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidDocument(f"{path}: cannot be read as a price book: {error}") from error
    book = {}
    for cloud, instances in clouds.items():
        for instance, entry in instances.items() if isinstance(instances, dict) else ():
            price = _price(path, cloud, instance, entry)
            book[price.name] = price
    if not book:
        raise InvalidDocument(f'{path}: no prices; write tables [cloud."instance type"]')
    return book


def _price(path: Path, cloud: str, instance: str, entry: object) -> Price:
    where = f"{path}: [{cloud}.{instance}]"
    if not isinstance(entry, dict):
        raise InvalidDocument(f"{where} is no table")
    try:
        on_demand, spot = float(entry["on_demand"]), float(entry["spot"])
        region, when, source = str(entry["region"]), entry["date"], str(entry["source"])
    except KeyError as error:
        raise InvalidDocument(f"{where} has no {error}") from error
    except (TypeError, ValueError) as error:
        raise InvalidDocument(f"{where}: {error}") from error
    if not isinstance(when, date) or on_demand <= 0 or spot <= 0:
        raise InvalidDocument(f"{where}: write a date as 2026-11-21, and prices above 0")
    return Price(cloud, instance, region, on_demand, spot, when, source)


def choose_price(book: Mapping[str, Price], name: str) -> Price:
    """The price of that instance type.

    Raises:
        InvalidSettings: it is not in the book.
    """
    if name not in book:
        raise InvalidSettings("instance", f"{name} is not in the price book", f"Choose from {', '.join(book)}")
    return book[name]


def bill(outcome: Outcome, trace: Trace, job: Job, price: Price) -> Bill:
    """What a run cost, and what the same work costs on machines that nobody takes."""
    on_demand_hours = outcome.useful / job.scaling.rate(job.maximum) * job.maximum / HOUR
    return Bill(trace.node_seconds / HOUR * price.spot, on_demand_hours * price.on_demand)
