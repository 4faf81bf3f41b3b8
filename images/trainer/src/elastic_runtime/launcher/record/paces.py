"""Measured paces of a run: steps and seconds of the worlds of each size. Pure.

A pace is measured from one reported step of a world to another, so it has evaluations and checkpoints between them,
but not the time from one world to the next. Its measurements are joined to *blocks*, few enough whatever the run's
length. From the newest blocks that make up half of the time (so that a slow beginning, or a pace that has changed,
counts less and less), with steps ``s`` and seconds ``t`` of ``k`` blocks::

    p = sum(t) / sum(s)                                          seconds a step
    v = k / (k - 1) * sum((t - p * s)²) / sum(s)                 variance of a step's seconds

This is the ratio estimator with batch means: a block's mean is nearly independent of the next one's, though steps are
not (Law, *Simulation Modeling and Analysis*, chapter 9). ``r`` steps then take ``r * p`` seconds, with the variance of
these steps and of ``p`` itself::

    r * v * (1 + r / sum(s))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from elastic_runtime.run.status_progress import MAX_PACES, Pace

SHORTEST = 1.0
"""Seconds of one measurement, at least: messages of ranks come in bunches on a busy machine."""
FIRST_BLOCK = 2.0
"""Seconds of a block at first, at least. They double if there are too many."""
MOST_BLOCKS = 32
"""Blocks of one size."""
LEAST_BLOCKS = 4
"""Blocks that an estimate uses, if there are as many."""
LEAST_SPREAD = 0.05
"""Half width of each interval relative to its pace, at least."""
UNKNOWN_SPREAD = 0.5
"""The same of a pace with one block, whose variance is unknown."""
SLOWEST_SHARE = 0.2
"""Lower end of each interval relative to its pace, at least."""
_STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)
"""Factors for nine of ten cases by degrees of freedom, from 1 (Student's t)."""
_STUDENT_BEYOND = 1.75


@dataclass(frozen=True, slots=True)
class Interval:
    """A pace and how far it may be off, in seconds a step."""

    low: float
    point: float
    high: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Pace of the worlds of one size; see the module."""

    ranks: int
    steps: float
    """Of the blocks that it is from, more than 0."""
    seconds: float
    """Of these blocks, more than 0."""
    variance: float
    """Of a step's seconds."""
    blocks: int

    @property
    def pace(self) -> float:
        """Seconds a step."""
        return self.seconds / self.steps

    def over(self, steps: float) -> Interval:
        """Return the pace over so many further steps (more than 0), as an interval for nine of ten cases."""
        spread = UNKNOWN_SPREAD
        if self.blocks > 1:
            factor = _STUDENT[self.blocks - 2] if self.blocks - 2 < len(_STUDENT) else _STUDENT_BEYOND
            spread = factor * math.sqrt(self.variance * (1 / steps + 1 / self.steps)) / self.pace
        spread = max(LEAST_SPREAD, spread)
        return Interval(self.pace * max(SLOWEST_SHARE, 1 - spread), self.pace, self.pace * (1 + spread))


@dataclass(slots=True)
class Blocks:
    """Measurements of one size."""

    length: float = FIRST_BLOCK
    """Seconds of a block, at least; the last one may have less."""
    blocks: list[tuple[float, float]] = field(default_factory=list)
    """Steps and seconds, the newest last."""

    def add(self, steps: float, seconds: float) -> None:
        """Add a measurement, which is the newest."""
        if self.blocks and self.blocks[-1][1] < self.length:
            before = self.blocks.pop()
            steps, seconds = steps + before[0], seconds + before[1]
        self.blocks.append((steps, seconds))
        if len(self.blocks) > MOST_BLOCKS:
            self.length *= 2
            pairs = zip(self.blocks[::2], [*self.blocks[1::2], (0.0, 0.0)], strict=False)
            self.blocks = [(one[0] + other[0], one[1] + other[1]) for one, other in pairs]

    def total(self) -> tuple[float, float]:
        """Return all steps and seconds."""
        return _sums(self.blocks)

    def newest(self) -> Sequence[tuple[float, float]]:
        """Return the blocks that make up the newest half of the time, but not fewer than :data:`LEAST_BLOCKS`."""
        half, seconds = self.total()[1] / 2, 0.0
        for count, block in enumerate(reversed(self.blocks), 1):
            seconds += block[1]
            if seconds >= half and count >= LEAST_BLOCKS:
                return self.blocks[-count:]
        return self.blocks

    def measured(self, ranks: int) -> Measured:
        """Return the pace of worlds of so many ranks."""
        blocks = self.newest()
        steps, seconds = _sums(blocks)
        count, pace = len(blocks), seconds / steps
        off = math.fsum((each[1] - pace * each[0]) ** 2 for each in blocks)
        return Measured(ranks, steps, seconds, count / (count - 1) * off / steps if count > 1 else 0.0, count)


class Paces:
    """Measures the paces of a run. Told what happens, in the order of happening.

    Args:
        previous: paces of the status of the launcher before, which are continued.
    """

    def __init__(self, previous: Iterable[Pace] = ()) -> None:
        self._sizes: dict[int, Blocks] = {}
        for each in previous:
            if each.ranks > 0 and each.steps > 0 and each.seconds > 0:
                self._blocks(each.ranks).add(each.steps, each.seconds)
        self._ranks = 0
        self._from: tuple[int, datetime] | None = None
        """Step and time from which the pace is measured next."""

    def world(self, ranks: int) -> None:
        """Another world of so many ranks is complete. 0: none trains."""
        self._ranks, self._from = ranks, None

    def stepped(self, step: int, now: datetime) -> None:
        """A rank has reported that step."""
        before, since = self._from or (step, now)
        seconds = (now - since).total_seconds()
        if self._ranks and step > before and seconds >= SHORTEST:
            self._blocks(self._ranks).add(step - before, seconds)
        if self._from is None or step < before or seconds < 0 or (step > before and seconds >= SHORTEST):
            self._from = step, now

    def told(self) -> tuple[Pace, ...]:
        """Return the paces for the status, by size."""
        totals = ((ranks, *each.total()) for ranks, each in sorted(self._sizes.items()))
        return tuple(Pace(ranks, round(steps), round(seconds, 3)) for ranks, steps, seconds in totals)

    def measured(self) -> tuple[Measured, ...]:
        """Return the paces for an estimate, by size."""
        return tuple(each.measured(ranks) for ranks, each in sorted(self._sizes.items()))

    def _blocks(self, ranks: int) -> Blocks:
        """Those of a size, which is then the newest of at most :data:`MAX_PACES`."""
        self._sizes[ranks] = self._sizes.pop(ranks, Blocks())
        if len(self._sizes) > MAX_PACES:
            del self._sizes[next(iter(self._sizes))]
        return self._sizes[ranks]


def _sums(blocks: Iterable[tuple[float, float]]) -> tuple[float, float]:
    steps, seconds = 0.0, 0.0
    for each in blocks:
        steps, seconds = steps + each[0], seconds + each[1]
    return steps, seconds
