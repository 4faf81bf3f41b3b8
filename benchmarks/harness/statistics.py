"""Summaries of few, noisy figures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import mean, median, quantiles

RESAMPLES = 1000
CONFIDENCE = 0.95


class Centre(StrEnum):
    """Which one figure stands for many."""

    MEDIAN = "median"
    MEAN = "mean"

    def of(self, values: Sequence[float]) -> float:
        """Raises statistics.StatisticsError when there are no values."""
        return median(values) if self is Centre.MEDIAN else mean(values)


@dataclass(frozen=True, slots=True)
class Summary:
    """One measure of one side. All but ``count`` in the measure's unit."""

    centre: float
    """Median or mean."""
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    count: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours by theirs."""

    value: float
    """Of the centres."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


def summarise(values: Sequence[float], centre: Centre = Centre.MEDIAN) -> Summary:
    """Centre and quartiles.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to summarise")
    low, high = values[0], values[0]
    if len(values) > 1:
        low, _, high = quantiles(values, n=4, method="inclusive")
    return Summary(centre.of(values), low, high, len(values))


def compare(
    ours: Sequence[float], peer: Sequence[float], centre: Centre = Centre.MEDIAN, seed: int = 0
) -> Ratio | None:
    """Ratio of the centres with a percentile bootstrap interval; None when the peer's is 0 or a side has no values.

    The bootstrap (Efron, 1979) draws both sides again, with replacement, :data:`RESAMPLES` times.

    Args:
        ours: figures of our side.
        peer: figures of the other, in the same unit.
        centre: what is compared.
        seed: of the draws, so that the same figures give the same interval.
    """
    if not ours or not peer or centre.of(peer) == 0:
        return None
    draw = random.Random(seed)  # noqa: S311  # draws of a bootstrap, no secret
    ratios = sorted(
        above / below
        for above, below in (
            (centre.of(draw.choices(ours, k=len(ours))), centre.of(draw.choices(peer, k=len(peer))))
            for _ in range(RESAMPLES)
        )
        if below
    )
    tail = (1 - CONFIDENCE) / 2
    last = len(ratios) - 1
    return Ratio(centre.of(ours) / centre.of(peer), ratios[round(tail * last)], ratios[round((1 - tail) * last)])
