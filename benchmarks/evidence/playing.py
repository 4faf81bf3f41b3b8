"""One run of the language model by one side, with ranks that are killed on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence.language import WEIGHTS, Lesson, Weights
from benchmarks.evidence.law import Fault
from benchmarks.evidence.records import Point, curve, read, thinned
from benchmarks.harness.ours import OurLauncher
from benchmarks.harness.processes import kill
from benchmarks.harness.records import Step
from benchmarks.harness.sides import Side, Training
from elastic_runtime.run.spec import RecoverySpec

TRAINING = Path(__file__).resolve().parent / "training.py"
Say = Callable[[str], None]
SAY_EVERY = 20.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was done to a run."""

    seconds: float
    """Since its launch."""
    what: str


@dataclass(frozen=True, slots=True)
class Played:
    """One run, to its end."""

    name: str
    points: tuple[Point, ...]
    events: tuple[Event, ...]
    wasted: int
    """Steps that were tried and thrown away by a rank."""
    weights: Weights
    left_behind: int
    exit_code: int | None

    def raw(self, undisturbed: Weights) -> dict[str, Any]:
        """How it ended, and its curve, as they are kept."""
        return {
            "digest": self.weights.digest,
            "difference": self.weights.difference(undisturbed),
            "left_behind": self.left_behind,
            "exit_code": self.exit_code,
            "events": [[round(event.seconds, 3), event.what] for event in self.events],
            "points": plain(thinned(self.points)),
        }


class Watch:
    """The newest step of each rank, of records that grow."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._seen = 0
        self.newest = 0
        self.by_rank: dict[int, Step] = {}
        self.look(steps)

    def look(self, steps: Sequence[Step]) -> None:
        """Take in what was added."""
        for step in steps[self._seen :]:
            self.newest = max(self.newest, step.step)
            if step.rank not in self.by_rank or self.by_rank[step.rank].time <= step.time:
                self.by_rank[step.rank] = step
        self._seen = len(steps)

    def victim(self, rank: int) -> Step:
        """The last record of that rank, or of the last one there is, in the newest world."""
        size = max(self.by_rank.values(), key=lambda step: step.time).size
        return self.by_rank[min(rank, size - 1)]


def play(
    name: str,
    side: Side,
    folder: Path,
    lesson: Lesson,
    size: int,
    faults: Sequence[Fault],
    limit: float,
    say: Say,
    hit: Callable[[Step], None] = lambda step: kill(step.pid),
) -> Played:
    """Train to the end, and kill a rank at each of the faults.

    Args:
        name: of the run, for people.
        side: who runs it.
        folder: empty.
        lesson: what is trained.
        size: ranks.
        faults: in order of their steps.
        limit: seconds for all of it.
        say: takes its progress.
        hit: what is done to a victim, given its last record.

    Raises:
        RoundFailed: it took longer, or ended too soon.
    """
    watch, events, deadline = Watch(), [], time.monotonic() + limit
    said = time.monotonic()

    def reached(step: int) -> Callable[[list[Step]], bool | None]:
        def look(steps: list[Step]) -> bool | None:
            nonlocal said
            watch.look(steps)
            if time.monotonic() > said + SAY_EVERY:
                said = time.monotonic()
                say(f"{name}: step {watch.newest} of {lesson.steps}")
            return watch.newest >= step or None

        return look

    with Training(side, folder, size, str(lesson)) as training:
        for fault in faults:
            training.wait_for(f"step {fault.step}", reached(fault.step), deadline - time.monotonic())
            victim = watch.victim(fault.victim)
            events.append(Event(time.time() - training.launched, f"rank {victim.rank} killed"))
            hit(victim)
            say(f"{name}: rank {victim.rank} killed at step {watch.newest}")
        training.wait_for("the last step", reached(lesson.steps), deadline - time.monotonic())
        training.await_end(max(deadline - time.monotonic(), 1.0))
    say(f"{name}: done, in {time.time() - training.launched:.0f} s")
    records = folder / "records"
    wasted = sum(len(path.read_text().splitlines()) for path in records.glob("*.wasted"))
    points = tuple(curve(read(records), training.launched))
    weights = Weights.read(folder / WEIGHTS)
    return Played(name, points, tuple(events), wasted, weights, training.left_behind, training.exit_code)


def by_ours(backoff: float = 0.1, ranks: int = 2, script: Path = TRAINING) -> OurLauncher:
    """Our side.

    Args:
        backoff: seconds before the slot of a killed rank is used again; it does not grow.
        ranks: most of them.
        script: what they run.
    """
    recovery = RecoverySpec(backoff=backoff, backoff_maximum=backoff, rank_failures=1000)
    return OurLauncher(engine="torch", script=script, recovery=recovery, maximum=ranks)


def plain(points: Sequence[Point]) -> list[list[float]]:
    """As they are kept: seconds, step, ranks and loss."""
    return [[round(each.seconds, 3), each.step, each.size, round(each.loss, 4)] for each in points]
