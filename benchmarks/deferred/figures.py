"""What is measured, from the rounds to figures with targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median, quantiles

from benchmarks.deferred.rounds import Round
from benchmarks.deferred.sides import Name
from benchmarks.harness.measures import Bound, Target
from benchmarks.harness.statistics import Ratio, Summary, compare, summarise

_MIB = 2**20
LARGEST = 1000
"""The N of the targets."""


class Quantity(StrEnum):
    """Of one round."""

    REQUESTS = "requests"
    CPU = "cpu"
    MEMORY = "memory"
    DELAY = "delay"
    DELAY_95 = "delay_95"
    BEGIN = "begin"


TITLES = {
    Quantity.REQUESTS: ("requests of the triggerer at the API server", "1/s"),
    Quantity.CPU: ("CPU of the triggerer, both its processes", "s/min"),
    Quantity.MEMORY: ("memory of the triggerer (PSS), largest", "MiB"),
    Quantity.DELAY: ("end of a run → task scheduled again, median", "s"),
    Quantity.DELAY_95: ("the same, 95th percentile", "s"),
    Quantity.BEGIN: ("triggerer started → all triggers at work", "s"),
}
TARGETS = {
    (LARGEST, Quantity.REQUESTS): Target(Bound.RATIO_AT_MOST, 1 / 20),
    (LARGEST, Quantity.CPU): Target(Bound.RATIO_AT_MOST, 1 / 10),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity at one N."""

    count: int
    """N."""
    quantity: Quantity
    ours: Summary
    peer: Summary
    idle: float | None
    """Of a triggerer with N triggers that never talk to Kubernetes; None where that says nothing."""
    ratio: Ratio | None

    @property
    def key(self) -> str:
        """In ``results.json``."""
        return f"deferred_{self.count}_{self.quantity}"

    @property
    def target(self) -> Target | None:
        """What is to be reached."""
        return TARGETS.get((self.count, self.quantity))

    @property
    def met(self) -> bool | None:
        """Whether it is; None without a target."""
        return self.target.met(self.ours.centre, self.ratio.value if self.ratio else None) if self.target else None


def figures_of(rounds: Iterable[Round]) -> list[Figure]:
    """Every quantity at every N that both sides have rounds of."""
    by_side: dict[tuple[int, Name], list[Round]] = {}
    for each in rounds:
        by_side.setdefault((each.count, each.side), []).append(each)
    found = []
    for count in sorted({count for count, _ in by_side}):
        ours, peer, idle = (by_side.get((count, name), []) for name in (Name.OURS, Name.PEER, Name.IDLE))
        if ours and peer:
            found += [_figure(count, quantity, ours, peer, idle) for quantity in Quantity]
    return found


def _figure(
    count: int, quantity: Quantity, ours: Sequence[Round], peer: Sequence[Round], idle: Sequence[Round]
) -> Figure:
    mine, theirs = ([value(each, quantity) for each in rounds] for rounds in (ours, peer))
    others = [value(each, quantity) for each in idle] if quantity in (Quantity.CPU, Quantity.MEMORY) else []
    return Figure(
        count,
        quantity,
        summarise(mine),
        summarise(theirs),
        median(others) if others else None,
        compare(mine, theirs) if all(map(math.isfinite, (*mine, *theirs))) else None,
    )


def value(of: Round, quantity: Quantity) -> float:
    """In the unit of :data:`TITLES`."""
    match quantity:
        case Quantity.REQUESTS:
            return of.rate
        case Quantity.CPU:
            return 60 * of.usage.cpu / of.usage.seconds
        case Quantity.MEMORY:
            return max(of.usage.pss) / _MIB
        case Quantity.DELAY:
            return median(of.delays) if of.delays else math.nan
        case Quantity.DELAY_95:
            return quantiles(of.delays, n=20, method="inclusive")[-1] if len(of.delays) > 1 else math.nan
        case Quantity.BEGIN:
            return of.begun
