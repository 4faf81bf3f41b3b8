"""Waiting for what a run does, on each kind of cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.types import (
    LogLines,
    RunRef,
    StatusChanged,
    Update,
)
from elastic_training.concurrency.bridge import run
from tests.contract.cluster_kinds import OWNER, Kind

WATCH_TIMEOUT = 240.0
"""Seconds for anything to happen, on a busy machine."""
NEWER = "the second try"


def until(kind: Kind, ref: RunRef, wanted: Callable[[Status], bool]) -> Status:
    """Watch until the status is as wanted; fails when the run ends before."""

    async def wait() -> Status:
        last = None
        async with asyncio.timeout(WATCH_TIMEOUT), aclosing(kind.cluster.watch(ref, None, 1.0)) as updates:
            async for update in updates:
                if isinstance(update, StatusChanged):
                    last = update.status
                    if wanted(last):
                        return last
        raise AssertionError(f"the run ended before: {last}")

    return asyncio.run(wait())


def to_the_end(kind: Kind, ref: RunRef, cursor: str) -> list[Update]:
    """All updates of one watch."""

    async def collect() -> list[Update]:
        async with asyncio.timeout(WATCH_TIMEOUT), aclosing(kind.cluster.watch(ref, cursor, 1.0)) as updates:
            return [update async for update in updates]

    return asyncio.run(collect())


def training(workers: int) -> Callable[[Status], bool]:
    """Whether so many ranks train."""
    return lambda status: status.phase is Phase.RUNNING and status.world_size == workers


def over(status: Status) -> bool:
    """Whether the run is."""
    return status.phase.final


def lines_of(updates: list[Update]) -> list[str]:
    """Of the log."""
    return [line for update in updates if isinstance(update, LogLines) for line in update.lines]


def started(kind: Kind, workers: int = 1) -> RunRef:
    """A run that trains."""
    ref = run(kind.cluster.claim(kind.spec(start=workers), OWNER)).ref
    until(kind, ref, training(workers))
    return ref
