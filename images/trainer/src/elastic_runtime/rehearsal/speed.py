"""How fast a task trains with how many workers, from what its runs have measured. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.run.status import Status

LEAST_EFFICIENCY = 0.51
"""Of a doubling, as of :class:`.Scaling`: what was measured below counts as this."""
LEAST_POINTS = 3
"""Measurements with a number of workers; fewer are left out."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What steps take."""

    step_work: float
    """Seconds that one worker alone would take for a global step."""
    scaling: Scaling
    """How throughput grows with the number of workers."""

    def step_seconds(self, workers: int) -> float:
        """Seconds of a step with so many."""
        return self.step_work / self.scaling.rate(workers)


def speed_of(seconds: float, workers: int, scaling: Scaling) -> Speed:
    """From the seconds of a step with so many workers."""
    return Speed(seconds * scaling.rate(workers), scaling)


def measured(status: Status, slots: int = 1) -> Mapping[int, float]:
    """Median steps a second by number of workers, from the curves of one run; empty where it has none.

    A measurement counts if the same world has trained since the one before.

    Args:
        status: of the run.
        slots: ranks of each worker.
    """
    worlds = sorted((world.time.timestamp(), world.size) for world in status.history)
    begins = [begin for begin, _ in worlds]
    points = zip(status.throughput.times, status.throughput.values, strict=False)
    rates: dict[int, list[float]] = defaultdict(list)
    for (before, _), (moment, rate) in pairwise(points):
        index = bisect_right(begins, moment) - 1
        if index < 0 or index != bisect_right(begins, before) - 1 or not rate > 0 or not math.isfinite(rate):
            continue
        size = worlds[index][1]
        if size and size % slots == 0:
            rates[size // slots].append(rate)
    return {workers: median(each) for workers, each in sorted(rates.items()) if len(each) >= LEAST_POINTS}


def fitted(rates: Mapping[int, float], efficiency: float | None = None) -> Speed:
    """The speed that fits best: least squares of ``log(rate)`` over ``log2(workers)``.

    Args:
        rates: steps a second by number of workers, at least one.
        efficiency: of a doubling, where it is known; None: fitted, and 1 where there is only one number of workers.
    """
    doublings = [math.log2(workers) for workers in rates]
    logs = [math.log(rate) for rate in rates.values()]
    if efficiency is None:
        middle, height = fmean(doublings), fmean(logs)
        width = sum((x - middle) ** 2 for x in doublings)
        slope = sum((x - middle) * (y - height) for x, y in zip(doublings, logs, strict=True)) / width if width else 0.0
        efficiency = min(1.0, max(LEAST_EFFICIENCY, math.exp(slope) / 2)) if width else 1.0
    scaling = Scaling(efficiency)
    alone = math.exp(fmean(y - math.log(scaling.rate(workers)) for workers, y in zip(rates, logs, strict=True)))
    return Speed(1 / alone, scaling)
