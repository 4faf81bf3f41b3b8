"""What a finished run of ``digits_elastic`` amounts to, and whether that is what the demo promises. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from digits.ledger import Entry, StepLoss, count, losses
from elastic_runtime.run.status import EventKind, Status

WANTED_SIZES = (2, 3, 2)
"""World sizes that have to occur in this order, others between them allowed."""
WANTED_ACCURACY = 0.97
_CAUSES = {EventKind.SIZE_ASKED, EventKind.NOTICE}


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the demo, as the start of Airflow or a task."""

    name: str
    start: float
    """Seconds since 1970 (UTC)."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of the demo's table."""

    world_sizes: tuple[int, ...]
    """Of the steps that were trained, in order, equal neighbours merged."""
    steps: int
    samples_seen: int
    samples_lost: int
    samples_repeated: int
    accuracy: float | None
    """On the test shard; None when it was not evaluated."""
    phases: tuple[Phase, ...]
    next_sizes: tuple[tuple[int, float | None], ...] = ()
    """Each world size after the first, and the seconds to its first step from the newest event that asked for another
    size or told of a notice; None: there is none before it."""

    def figures(self) -> dict[str, str]:
        """For the table and the report."""
        accuracy = "not evaluated" if self.accuracy is None else f"{self.accuracy:.4f}"
        since = ", ".join(
            f"{size} in {'?' if seconds is None else f'{seconds:.1f} s'}" for size, seconds in self.next_sizes
        )
        return {
            "world sizes": " → ".join(map(str, self.world_sizes)),
            "from size asked or notice to its first step": since or "none",
            "steps": f"{self.steps:,}",
            "samples seen": f"{self.samples_seen:,}",
            "samples lost / repeated": f"{self.samples_lost:,} / {self.samples_repeated:,}",
            "accuracy on the test shard": accuracy,
        }

    def plain(self) -> dict[str, Any]:
        """For ``build/demo.json``."""
        return {
            "world_sizes": list(self.world_sizes),
            "next_sizes": [[size, seconds and round(seconds, 2)] for size, seconds in self.next_sizes],
            "steps": self.steps,
            "samples_seen": self.samples_seen,
            "samples_lost": self.samples_lost,
            "samples_repeated": self.samples_repeated,
            "accuracy": self.accuracy,
            "phases": {phase.name: round(phase.seconds, 2) for phase in self.phases},
        }


@dataclass(frozen=True, slots=True)
class LookBack:
    """All that the report shows."""

    outcome: Outcome
    status: Status
    """The last of the training."""


def look_back(
    entries: Iterable[Entry],
    samples: int,
    epochs: int,
    status: Status,
    accuracy: float | None,
    phases: Sequence[Phase],
) -> LookBack:
    """Count from what the ranks wrote down.

    Args:
        entries: of the ledgers of all ranks.
        samples: size of the train shard.
        epochs: that were to be trained.
        status: the last of the training.
        accuracy: that the task *evaluate* found.
        phases: of the demo.
    """
    entries = list(entries)
    counts = count(entries, samples, epochs)
    steps = losses(entries)
    outcome = Outcome(
        world_sizes=_merged(step.world_size for step in steps),
        steps=counts.steps,
        samples_seen=counts.seen,
        samples_lost=counts.lost,
        samples_repeated=counts.repeated,
        accuracy=accuracy,
        phases=tuple(phases),
        next_sizes=tuple(_next_sizes(steps, status)),
    )
    return LookBack(outcome, status)


def problems(outcome: Outcome) -> list[str]:
    """In what the outcome falls short of the demo's promise; empty when in nothing."""
    found = []
    if not contains_in_order(outcome.world_sizes, WANTED_SIZES):
        found.append(f"world sizes {list(outcome.world_sizes)} do not contain {list(WANTED_SIZES)} in this order")
    if outcome.accuracy is None or outcome.accuracy < WANTED_ACCURACY:
        found.append(f"accuracy {outcome.accuracy} is less than {WANTED_ACCURACY}")
    if outcome.samples_lost:
        found.append(f"{outcome.samples_lost} samples were lost")
    if outcome.samples_repeated:
        found.append(f"{outcome.samples_repeated} samples were trained on twice")
    return found


def contains_in_order(sizes: Iterable[int], wanted: Iterable[int]) -> bool:
    """Whether ``wanted`` is a subsequence of ``sizes``."""
    rest = iter(sizes)
    return all(size in rest for size in wanted)


def task_phases(tasks: Iterable[Mapping[str, Any]]) -> list[Phase]:
    """Task instances, as the REST API describes them, as phases in the order of their starts."""
    phases = []
    for task in tasks:
        if task["start_date"] and task["end_date"] and task["state"] != "skipped":
            start, end = (datetime.fromisoformat(task[key]).timestamp() for key in ("start_date", "end_date"))
            phases.append(Phase(task["task_id"], start, end - start))
    return sorted(phases, key=lambda phase: phase.start)


def _next_sizes(steps: Iterable[StepLoss], status: Status) -> Iterator[tuple[int, float | None]]:
    causes = [event.time.timestamp() for event in status.events if event.kind in _CAUSES]
    for before, step in pairwise(steps):
        if step.world_size != before.world_size:
            cause = max((time for time in causes if time <= step.time), default=None)
            yield step.world_size, None if cause is None else step.time - cause


def _merged(sizes: Iterable[int]) -> tuple[int, ...]:
    merged: list[int] = []
    for size in sizes:
        if merged[-1:] != [size]:
            merged.append(size)
    return tuple(merged)
