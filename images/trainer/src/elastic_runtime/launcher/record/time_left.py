"""Estimated time to the last step of a run, with an interval. Pure.

**Pace of a size.** The pace of *n* ranks is measured if worlds of that size have trained in this run (:mod:`.paces`).
It is also inferred from the other sizes that have. A step takes ``T(n) = a + b / n`` seconds: a part that all ranks do,
and a part that is divided among them (Amdahl's law). With two other sizes or more, *a* and *b*, neither negative, are
fitted by least squares, weighted by the measured seconds. With one size *m*, half of a step is assumed to be divided.
The interval reaches from a step that is divided completely (``T(m) * m / n``) to one that is not divided at all
(``T(m)``), each with the interval of ``T(m)``, where *m* is the nearest other size. The pace is the mean of the two,
weighted by the inverse squares of the relative widths of their intervals: a size that trains for the first time begins
with what is inferred, in a wide interval, and soon has its own.

**Sizes to come.** Ranks that train now go on. A rank with a notice trains to its deadline. While fewer ranks train than
are wanted, the shortage lasts as long again as it has lasted (the median if nothing else is known, as in Gott, *Nature*
363, 1993: it goes on for *k* times its age with a probability of ``1 / (1 + k)``), but at least :data:`REPLACING`
seconds; then the wanted size trains to the end. Sizes of the run's size plan train from the time when they begin.
Nobody trains while the run has fewer ranks than its minimum.

**Interval.** It is for nine of ten cases, if what was measured goes on. Its lower end has the low paces and no
shortage. Its upper end has the high paces, shortages of :data:`LONGEST` times their age, and twice as much time between
worlds for each second of training as the run has had so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TypeVar

from elastic_runtime.launcher.record.paces import Interval, Measured
from elastic_runtime.run.status import shortened
from elastic_runtime.run.status_progress import MAX_BASIS

N = TypeVar("N", bound=float)

ENOUGH = 10.0
"""Seconds in which a size has to be measured for another's pace to be inferred from it, if one has been."""
LEAST_MEASURED = 2
"""Blocks of measurements that it has to have."""
REPLACING = 30.0
"""Seconds that a shortage lasts, at least."""
LONGEST = 9.0
"""Ages of a shortage for which it goes on, at most, in nine of ten cases."""
MOST_INTERRUPTED = 1.0
"""Seconds between worlds that a second of training has so far, at most."""
MOST_PLANNED = 30
"""Sizes of the plan that are considered, the first."""
MOST_DEADLINES = 10
"""Deadlines of notices, the first; later ones count as the last of these."""
HORIZON = 10 * 365 * 86400.0
"""Seconds that an estimate has at most: ten years."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A run's situation."""

    left: int
    """Steps that are left, at least 0."""
    ranks: int
    """Ranks that train now. 0: none."""
    wanted: int
    """Ranks that are asked for. 0: the run is to wait."""
    planned: tuple[tuple[float, int], ...] = ()
    """Sizes of the size plan to come: in how many seconds, ascending, and how many ranks are wanted from then on."""
    minimum: int = 1
    """Fewest ranks that train."""
    short: float = 0.0
    """Seconds for which fewer ranks have trained than are wanted."""
    leaving: tuple[tuple[float, int], ...] = ()
    """Notices: seconds to the deadline, and ranks of the present world that it takes."""
    since_step: float = 0.0
    """Seconds since the last step was reported."""
    interrupted: float = 0.0
    """Seconds between worlds, for each second of training so far."""


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate. ``least <= seconds <= most``, and none is negative."""

    seconds: float
    least: float
    most: float
    basis: str
    """Source of the paces, for people."""


def time_left(measured: Iterable[Measured], now: Situation) -> TimeLeft | str:
    """Estimate the time to the last step.

    Args:
        measured: paces of this run, each size once.
        now: the run's situation.

    Returns:
        The estimate; or why there is none, for people.
    """
    if now.left <= 0:
        return TimeLeft(0.0, 0.0, 0.0, "all steps are done")
    if now.wanted <= 0:
        return "no ranks are wanted"
    known = tuple(measured)
    if not known:
        return "no pace is measured yet"

    @cache
    def pace(ranks: int) -> Interval:
        return pace_of(known, ranks, now.left)

    # A step may take minutes: part of the next one is done.
    done = min(1.0, max(0.0, now.since_step) / pace(now.ranks).point) if now.ranks else 0.0
    left, whole = now.left - done, replace(now, ranks=now.wanted, leaving=())
    again = max(now.short, REPLACING)
    seconds = _duration(left, stages(now, again), lambda ranks: pace(ranks).point)
    least = _duration(left, stages(whole, 0.0), lambda ranks: pace(ranks).low)
    most = _duration(left, stages(now, LONGEST * again), lambda ranks: pace(ranks).high)
    most *= 1 + 2 * min(MOST_INTERRUPTED, max(0.0, now.interrupted))
    if not seconds <= HORIZON:
        return f"at this pace, it would be more than {HORIZON / 365 / 86400:.0f} years"
    # More ranks may be slower than fewer: then the ends are not those of the sizes.
    return TimeLeft(seconds, min(least, seconds), min(max(most, seconds), HORIZON), _basis(known, now))


def pace_of(measured: Sequence[Measured], ranks: int, steps: float) -> Interval:
    """Return the pace of a size; see the module. Its point is the same over any number of steps.

    Args:
        measured: sizes, one at least.
        ranks: size, at least 1.
        steps: over which, more than 0.
    """
    point, ends = _pace(measured, ranks, math.inf).point, _pace(measured, ranks, steps)
    return Interval(min(ends.low, point), point, max(ends.high, point))


def _pace(measured: Sequence[Measured], ranks: int, steps: float) -> Interval:
    own = next((each.over(steps) for each in measured if each.ranks == ranks), None)
    others = _usable([each for each in measured if each.ranks != ranks])
    inferred = _inferred(others, ranks, steps) if others else None
    if own is None or inferred is None:
        found = own or inferred
        assert found is not None  # at least one size is measured
        return found
    weight, other = (((each.high - each.low) / each.point) ** -2 for each in (own, inferred))
    share = weight / (weight + other)
    ends = ((own.low, inferred.low), (own.point, inferred.point), (own.high, inferred.high))
    return Interval(*(share * one + (1 - share) * two for one, two in ends))


def _usable(measured: Sequence[Measured]) -> Sequence[Measured]:
    """Those that are measured well enough to infer others; if none is, all."""
    return [each for each in measured if each.seconds >= ENOUGH and each.blocks >= LEAST_MEASURED] or measured


def _inferred(others: Sequence[Measured], ranks: int, steps: float) -> Interval:
    nearest = min(others, key=lambda each: (abs(math.log(each.ranks / ranks)), each.ranks))
    one, ratio = nearest.over(steps), nearest.ranks / ranks
    low, high = one.low * min(1.0, ratio), one.high * max(1.0, ratio)
    if len(others) == 1:
        point = one.point * (1 + ratio) / 2
    else:
        shared, divided = _fitted(others)
        point = shared + divided / ranks
    return Interval(low, min(max(point, low), high), high)


def stages(now: Situation, shortage: float) -> list[tuple[float, int]]:
    """Return the sizes to come: the second from which each trains, from 0 on, and its ranks (0: none trains).

    Args:
        now: the run's situation.
        shortage: seconds that a shortage lasts from now on, or from the last deadline.
    """
    here, deadline = now.ranks, 0.0
    there: list[tuple[float, float]] = [(0.0, here)]
    leaving = sorted((max(0.0, each), taken) for each, taken in now.leaving)
    for deadline, taken in (*leaving[: MOST_DEADLINES - 1], *_joined(leaving[MOST_DEADLINES - 1 :])):
        here = max(0, here - taken)
        there.append((deadline, here))
    if here < now.wanted:
        there.append((deadline + shortage, math.inf))
    else:  # What leaves is more than is wanted.
        there = [(0.0, math.inf)]
    wanted = [(0.0, now.wanted), *now.planned[:MOST_PLANNED]]
    begins = sorted({begin for begin, _ in (*there, *wanted)})
    return [(begin, _size(_at(there, begin), _at(wanted, begin), now.minimum)) for begin in begins]


def _size(there: float, wanted: int, minimum: int) -> int:
    return wanted if there >= wanted else int(there) if there >= minimum else 0


def _at(steps: Sequence[tuple[float, N]], moment: float) -> N:
    """The newest value of a step function at that moment."""
    return next(value for begin, value in reversed(steps) if begin <= moment)


def _joined(leaving: Sequence[tuple[float, int]]) -> Sequence[tuple[float, int]]:
    return [(leaving[0][0], sum(taken for _, taken in leaving))] if leaving else []


def _duration(left: float, sizes: Sequence[tuple[float, int]], pace: Callable[[int], float]) -> float:
    """Seconds of so many steps: the last size trains to the end."""
    for (begin, ranks), (end, _) in pairwise(sizes):
        if not ranks:
            continue
        steps = (end - begin) / pace(ranks)
        if steps >= left:
            return begin + left * pace(ranks)
        left -= steps
    begin, ranks = sizes[-1]
    return begin + left * pace(ranks)


def _fitted(known: Sequence[Measured]) -> tuple[float, float]:
    """*a* and *b* of ``T(n) = a + b / n``, neither negative; see the module."""
    points = [(1 / each.ranks, each.pace, each.seconds) for each in known]
    weight = math.fsum(w for _, _, w in points)
    x = math.fsum(w * x for x, _, w in points) / weight
    y = math.fsum(w * y for _, y, w in points) / weight
    spread = math.fsum(w * (each - x) ** 2 for each, _, w in points)
    divided = math.fsum(w * (each - x) * (pace - y) for each, pace, w in points) / spread if spread > 0 else 0.0
    if divided <= 0:
        return y, 0.0
    if y - divided * x >= 0:
        return y - divided * x, divided
    return 0.0, math.fsum(w * x * y for x, y, w in points) / math.fsum(w * x * x for x, _, w in points)


def _basis(known: Sequence[Measured], now: Situation) -> str:
    sizes = dict.fromkeys(ranks for _, ranks in stages(now, REPLACING) if ranks)
    own = [each.ranks for each in _usable(known)]
    words = []
    if measured := [size for size in sizes if size in own]:
        words.append(f"measured with {_ranks(*measured)}")
    if inferred := [size for size in sizes if size not in own]:
        words.append(f"inferred for {_ranks(*inferred)} from {_ranks(*own)}")
    if now.ranks < now.wanted:
        words.append(f"{_ranks(now.wanted - now.ranks)} missing")
    if taken := sum(ranks for _, ranks in now.leaving):
        words.append(f"{_ranks(taken)} leaving")
    return shortened("; ".join(words), MAX_BASIS)


def _ranks(*sizes: int) -> str:
    return f"{', '.join(map(str, sizes))} rank{'' if sizes == (1,) else 's'}"
