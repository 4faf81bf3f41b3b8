"""What the records of a run come to: its curve, its pace, and what was done again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

MOST_POINTS = 2000
"""Of a curve."""
HORIZON = 25
"""Steps after a fault by which a run is at its pace again."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step as one rank has completed it."""

    time: float
    """Seconds since the epoch."""
    step: int
    rank: int
    size: int
    loss: float
    """Of the whole batch, before the step."""
    pid: int


@dataclass(frozen=True, slots=True)
class Point:
    """Of a curve: a step as the whole world has completed it."""

    seconds: float
    """Since the run's launch."""
    step: int
    size: int
    loss: float


def read(folder: Path) -> list[Done]:
    """All records of a run, in order of time."""
    found = []
    for path in folder.glob("*.jsonl"):
        # A rank that is killed may leave half a line.
        for line in path.read_text().splitlines():
            if line.endswith("}"):
                found.append(_parsed(json.loads(line), int(path.stem)))
    return sorted(found, key=lambda each: each.time)


def _parsed(line: dict[str, Any], pid: int) -> Done:
    return Done(line["t"] / 1e9, line["step"], line["rank"], line["size"], line.get("loss", 0.0), pid)


def completions(records: Iterable[Done]) -> list[list[Done]]:
    """The records of each time that a step was done, by step and then by time.

    A step was done again where the same process or the same rank has done it before.
    """
    ordered = sorted(records, key=lambda each: (each.step, each.time))
    found: list[list[Done]] = []
    for _, same in groupby(ordered, key=lambda each: each.step):
        once: list[Done] = []
        for each in same:
            if any(each.pid == other.pid or each.rank == other.rank for other in once):
                found.append(once)
                once = []
            once.append(each)
        found.append(once)
    return found


def curve(records: Iterable[Done], launched: float) -> list[Point]:
    """One point for each time that a step was done, in order of time."""
    last = [max(each, key=lambda done: done.time) for each in completions(records)]
    points = [Point(each.time - launched, each.step, each.size, each.loss) for each in last]
    return sorted(points, key=lambda point: point.seconds)


def repeated(points: Sequence[Point]) -> int:
    """How often a step was done that had been done before."""
    return len(points) - len({point.step for point in points})


def pace(points: Sequence[Point], size: int) -> float:
    """Median of the seconds from one step to the next, in worlds of that size.

    Raises:
        ValueError: no two steps follow each other in such a world.
    """
    gaps = [
        later.seconds - point.seconds
        for point, later in pairwise(points)
        if point.size == later.size == size and later.step == point.step + 1
    ]
    if not gaps:
        raise ValueError(f"no two steps at size {size}")
    return median(gaps)


def lost(points: Sequence[Point], kills: Sequence[float], usual: float) -> list[float]:
    """For each kill, the seconds that it cost, repeated steps included.

    The time from the last step before it until :data:`HORIZON` steps further, less what so many steps take otherwise.
    """
    found = []
    for kill in kills:
        earlier = [point for point in points if point.seconds <= kill]
        if not earlier:
            continue
        before = max(point.step for point in earlier)
        begun = min(point.seconds for point in earlier if point.step == before)
        further = [point.seconds for point in points if point.seconds > kill and point.step >= before + HORIZON]
        if further:
            found.append(min(further) - begun - HORIZON * usual)
    return found


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Every so many of them; both sides of the longest gaps, the first and the last always."""
    if len(points) <= most:
        return list(points)
    kept = {0, len(points) - 1}
    gaps = sorted(range(1, len(points)), key=lambda at: points[at - 1].seconds - points[at].seconds)
    for at in gaps[: most // 20]:
        kept |= {at - 1, at}
    every = -(-len(points) // (most - len(kept)))
    kept |= set(range(0, len(points), every))
    return [points[at] for at in sorted(kept)]
