"""What the ranks really trained on, written down by themselves, and the count over it.

Every rank process appends one line of JSON per step to a file of its own once the step is committed. The counts are
taken from these lines alone, not from the plan by which samples were dealt out. Standard library only: the demo reads
ledgers without torch.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Entry:
    """One rank's part of one global step."""

    step: int
    """Global step, from 1: the number of updates of the model with this one."""
    epoch: int
    """From 0."""
    rank: int
    world_size: int
    indices: tuple[int, ...]
    """Samples of the data set, in the order of the batch."""
    loss: float
    """Mean over these samples, before the update."""
    time: float
    """Seconds since 1970 (UTC) when the step was committed."""


class Ledger:
    """One rank process's file; a line is out of the process when :meth:`append` returns, so SIGKILL takes none.

    Args:
        folder: shared by the ranks of a run; made when missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Process ids come again; the time makes the name of this process's ledger its own.
        self._stream = (folder / f"{time.time_ns()}-{os.getpid()}.jsonl").open("x", encoding="utf-8", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, entry: Entry) -> None:
        """Write one line."""
        self._stream.write(json.dumps(asdict(entry), separators=(",", ":")) + "\n")


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a whole run, against every sample exactly once per epoch."""

    steps: int
    """Distinct global steps."""
    seen: int
    """Samples trained on, repetitions included."""
    lost: int
    """Sum over all epochs of the samples that no rank trained on."""
    repeated: int
    """Sum over all epochs of how often a sample was trained on beyond the first time."""


@dataclass(frozen=True, slots=True)
class StepLoss:
    """One global step of the whole world."""

    step: int
    time: float
    """When its last rank had committed it, in seconds since 1970."""
    world_size: int
    loss: float
    """Mean over all samples of the step."""


def read_entries(folder: Path) -> list[Entry]:
    """All entries of all rank processes under ``folder``, in no particular order.

    Raises:
        ValueError: a line is not an entry; a last line without its end is passed over, its process was killed in it.
    """
    return [entry for path in sorted(folder.glob("*.jsonl")) for entry in _read(path)]


def count(entries: Iterable[Entry], samples: int, epochs: int) -> Counts:
    """Count what was trained on.

    Args:
        entries: of all ranks.
        samples: size of the data set.
        epochs: that the run was to train.
    """
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    steps = set()
    for entry in entries:
        steps.add(entry.step)
        seen[entry.epoch].update(entry.indices)
    total = sum(counter.total() for counter in seen.values())
    distinct = sum(len(counter) for counter in seen.values())
    lost = sum(len(set(range(samples)) - seen[epoch].keys()) for epoch in range(epochs))
    return Counts(steps=len(steps), seen=total, lost=lost, repeated=total - distinct)


def losses(entries: Iterable[Entry]) -> list[StepLoss]:
    """The loss of each global step over the samples of all ranks, in the order of steps.

    A step that was trained twice, because its first world was lost, counts as the last time it was.
    """
    by_step: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_step[entry.step].append(entry)
    return [_merge(step, parts) for step, parts in sorted(by_step.items())]


def _merge(step: int, parts: Sequence[Entry]) -> StepLoss:
    newest = {entry.rank: entry for entry in sorted(parts, key=lambda entry: entry.time)}
    last = max(newest.values(), key=lambda entry: entry.time)
    world = [entry for entry in newest.values() if entry.world_size == last.world_size]
    weight = sum(len(entry.indices) for entry in world)
    loss = sum(entry.loss * len(entry.indices) for entry in world) / weight if weight else float("nan")
    return StepLoss(step=step, time=last.time, world_size=last.world_size, loss=loss)


def _read(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            return
        try:
            plain = json.loads(line)
            yield Entry(**(plain | {"indices": tuple(plain["indices"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}:{number} is not a ledger entry: {line[:200]!r}") from error
