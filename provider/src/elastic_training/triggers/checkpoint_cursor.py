"""Which durable checkpoints of a task's runs have been told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from elastic_runtime.documents import time_to_text
from elastic_runtime.run.status import Checkpoint

MAX_RUNS = 100
"""Runs that are remembered one by one, those that were told of last."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Compact record of the reported checkpoints, which is kept with the asset."""

    since: datetime
    """Time up to which checkpoints of runs that are not listed below count as reported."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Time and step of the last that was told of each run, by the run's name."""

    def is_new(self, run: str, checkpoint: Checkpoint) -> bool:
        """Whether the newest checkpoint of a run is to be told."""
        before = self.told.get(run)
        return checkpoint.time > self.since if before is None else before != _mark(checkpoint)

    def with_reported(self, run: str, checkpoint: Checkpoint) -> Self:
        """Return the cursor after this checkpoint."""
        told = {name: mark for name, mark in self.told.items() if name != run} | {run: _mark(checkpoint)}
        forgotten = [_time(told.pop(name)) for name in list(told)[:-MAX_RUNS]]
        return type(self)(max([self.since, *forgotten]), told)


def _mark(checkpoint: Checkpoint) -> str:
    return f"{time_to_text(checkpoint.time)} {checkpoint.step}"


def _time(mark: str) -> datetime:
    return datetime.fromisoformat(mark.partition(" ")[0])
