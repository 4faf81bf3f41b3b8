"""Other numbers of workers that a task would fare better with. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elastic_runtime.rehearsal.rehearse import Figures

LEAST_GAIN = 0.05
"""By which an alternative is better, at least, as a share of the time or the cost."""
TOLERANCE = 0.01
"""By which an alternative may be worse in what it is not better in."""
MOST_TRIED, MOST_SHOWN = 12, 3


@dataclass(frozen=True, slots=True, order=True)
class Sizes:
    """Fewest workers that train, and workers that are asked for: ``Workers(min=…, start=…)``."""

    minimum: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """Sizes that are better, and in what."""

    title: str
    sizes: Sizes
    figures: Figures


def candidates(own: Sizes, most: int, machines: int, *, fixed: bool) -> list[Sizes]:
    """Sizes to be tried: half to twice the workers that are asked for, and the most that can be; without the own.

    Args:
        own: of the task.
        most: workers that can be asked for: its ``max``.
        machines: that any of the markets ever has.
        fixed: the task trains at exactly the wanted size, so that its minimum is of no effect.
    """
    wanted = own.wanted
    sizes = sorted({min(machines, max(1, each)) for each in (wanted // 2, wanted, wanted * 3 // 2, wanted * 2, most)})
    tried = {
        Sizes(least, many)
        for many in sizes
        for least in ({min(own.minimum, many)} if fixed else {1, min(own.minimum, many), max(1, many // 2)})
    }
    return sorted(tried - {own})[:MOST_TRIED]


def better(own: Figures, tried: Mapping[Sizes, Figures]) -> list[Alternative]:
    """At most three, each the best in something, and never one with which fewer runs finish.

    Args:
        own: of the task's own sizes.
        tried: of others.
    """
    end = _late if math.isfinite(_late(own)) else _median
    sooner, cheaper = end(own) * (1 - LEAST_GAIN), _cost(own) * (1 - LEAST_GAIN)

    def no_dearer(each: Figures) -> bool:
        return _cost(each) <= _cost(own) * (1 + TOLERANCE)

    def no_later(each: Figures) -> bool:
        return end(each) <= end(own) * (1 + TOLERANCE)

    wishes: tuple[tuple[str, Callable[[Figures], bool], Callable[[Figures], float]], ...] = (
        ("more runs finish", lambda each: each.finished > own.finished, lambda each: -each.finished),
        ("ends sooner, and costs no more", lambda each: no_dearer(each) and end(each) <= sooner, end),
        ("costs less, and ends no later", lambda each: no_later(each) and _cost(each) <= cheaper, _cost),
        ("ends sooner", lambda each: end(each) <= sooner, end),
    )
    chosen: list[Alternative] = []
    for title, wanted, measure in wishes:
        taken = {one.sizes.wanted for one in chosen}
        # Of two that are as good, the one that ends sooner; then the cheaper, and the smaller.
        good = [
            (measure(each), _median(each), _cost(each), sizes)
            for sizes, each in tried.items()
            if each.finished >= own.finished and sizes.wanted not in taken and wanted(each)
        ]
        if good:
            best = min(good)[-1]
            chosen.append(Alternative(title, best, tried[best]))
    return chosen[:MOST_SHOWN]


def _late(each: Figures) -> float:
    """When nine of ten runs are done, in seconds; infinite if more than one of ten is not."""
    return math.inf if each.seconds.high is None else each.seconds.high


def _median(each: Figures) -> float:
    return math.inf if each.seconds.median is None else each.seconds.median


def _cost(each: Figures) -> float:
    return math.inf if each.mean_cost is None else each.mean_cost
