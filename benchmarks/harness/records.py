"""The step records that ``training.py`` writes, and what can be read off them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One step as one rank completed it."""

    time: float
    """Seconds since the epoch."""
    step: int
    rank: int
    size: int
    """Ranks of its world."""
    entry: int
    """How often this process had entered the training function by then, from 1."""
    pid: int


@dataclass(frozen=True, slots=True)
class Change:
    """A world that formed after something happened, and what that cost. Times in seconds since the epoch."""

    resumed: float
    """When every rank of the new world had completed its first step."""
    size: int
    pause: float
    """Seconds; the longest any remaining rank went without completing a step."""
    steps_lost: int
    """Steps that a remaining rank had completed and had to do again."""


class RecordReader:
    """Follows the files of one training; each byte is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = defaultdict(int)
        self.steps: list[Step] = []
        """Everything read so far, in no particular order between ranks."""

    def refresh(self) -> list[Step]:
        """Read what was added; returns :attr:`steps`."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as stream:
                stream.seek(self._offsets[path])
                data = stream.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] += whole
            self.steps.extend(_parse(line, int(path.stem)) for line in data[:whole].splitlines())
        return self.steps


def _parse(line: bytes, pid: int) -> Step:
    plain = json.loads(line)
    return Step(plain["t"] / 1e9, plain["step"], plain["rank"], plain["size"], plain["entry"], pid)


def first_whole_step(steps: Iterable[Step], size: int | None = None) -> Step | None:
    """The earliest step that every rank of its world (of ``size``, if given) completed, as its last record."""
    worlds: dict[tuple[int, int], dict[int, Step]] = defaultdict(dict)
    for step in steps:
        if size in (None, step.size):
            worlds[step.size, step.step].setdefault(step.rank, step)
    whole = (max(ranks.values(), key=_time) for (world, _), ranks in worlds.items() if len(ranks) == world)
    return min(whole, key=_time, default=None)


def change_after(steps: Sequence[Step], event: float, size: int | None = None) -> Change | None:
    """The first world, of ``size`` if given, that formed after ``event`` and completed a step; None: not yet.

    A step counts for the new world when its process has entered the training function anew, or never before: a step
    that was under way at the event and still completed in the old world does not.
    """
    before: dict[int, int] = defaultdict(int)
    for step in steps:
        if step.time <= event:
            before[step.pid] = max(before[step.pid], step.entry)
    fresh = [step for step in steps if step.entry > before[step.pid]]
    first = first_whole_step(fresh, size)
    if first is None:
        return None
    world = [step for step in fresh if step.size == first.size]
    pause, lost = 0.0, 0
    for pid in {step.pid for step in world}:
        new = min((step for step in world if step.pid == pid), key=_time)
        old = max((step for step in steps if step.pid == pid and step.time < new.time), key=_time, default=None)
        if old is not None:
            pause, lost = max(pause, new.time - old.time), max(lost, old.step - new.step + 1)
    return Change(first.time, first.size, pause, lost)


def rate(steps: Iterable[Step], begin: float, end: float) -> float:
    """Steps per second of rank 0 between two moments.

    Raises:
        ValueError: fewer than two steps lie between them.
    """
    inside = sorted((step for step in steps if step.rank == 0 and begin <= step.time <= end), key=_time)
    if len(inside) < 2:
        raise ValueError(f"{len(inside)} steps in {end - begin:.1f} s: no rate")
    return (inside[-1].step - inside[0].step) / (inside[-1].time - inside[0].time)


def _time(step: Step) -> float:
    return step.time
