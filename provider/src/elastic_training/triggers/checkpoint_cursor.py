"""Which durable checkpoints of a task's runs have been told. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from elastic_runtime.documents import time_to_text
from elastic_runtime.run.status import Checkpoint

MAX_RUNS = 100
"""Runs that are remembered one by one though they are not listed any more, those that were told of last."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Compact record of the reported checkpoints, which is kept with the asset."""

    since: datetime
    """Time up to which checkpoints of runs that are not below count as reported."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Time and step of the last that was told of each run, by the run's name. Without a step: none was, and those
    after that time are to be told."""

    def is_new(self, run: str, checkpoint: Checkpoint) -> bool:
        """Whether the newest checkpoint of a run is to be told."""
        before = self.told.get(run)
        if before is None:
            return checkpoint.time > self.since
        return before != _mark(checkpoint) if " " in before else checkpoint.time > _time(before)

    def with_reported(self, run: str, checkpoint: Checkpoint, listed: Collection[str]) -> Self:
        """Return the cursor after this checkpoint.

        Args:
            run: whose it is.
            checkpoint: that was told.
            listed: names of the runs that there are. None of them is forgotten: another one of its checkpoints would
                count as told.
        """
        told = {name: mark for name, mark in self.told.items() if name != run} | {run: _mark(checkpoint)}
        gone = [name for name in told if name not in listed and name != run]
        forgotten = [_time(told.pop(name)) for name in gone[:-MAX_RUNS]]
        if not forgotten:
            return type(self)(self.since, told)
        untold = {name: self.since.isoformat() for name in listed if name not in told}
        return type(self)(max([self.since, *forgotten]), untold | told)


def _mark(checkpoint: Checkpoint) -> str:
    return f"{time_to_text(checkpoint.time)} {checkpoint.step}"


def _time(mark: str) -> datetime:
    return datetime.fromisoformat(mark.partition(" ")[0])
