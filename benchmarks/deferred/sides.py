"""Who waits: our trigger, KubernetesPodOperator's, or triggers that wait for nothing of Kubernetes at all."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from benchmarks.deferred.triggerer import TriggerSpec

T = TypeVar("T")
_AT_ONCE = 16
"""Objects that are made at a time."""


class Name(StrEnum):
    """Of a side."""

    OURS = "ours"
    PEER = "peer"
    IDLE = "idle"
    """What the triggerer costs by itself: as many triggers, none of which talks to Kubernetes."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a launcher's life is like for those who watch it. Seconds; 0: never."""

    status: float = 30.0
    """Between two new status documents of a run: of one that has trained for ten minutes."""
    line: float = 10.0
    """Between two lines of a run's log."""


class Side(ABC):
    """One side; the same object for all rounds."""

    name: Name
    written: int = 0
    """Status documents that the stand-ins have written so far."""

    @abstractmethod
    async def create(self, count: int) -> Sequence[TriggerSpec]:
        """Lay so many runs down, all alive; returns what waits for each."""

    @abstractmethod
    async def live(self) -> None:
        """What the runs do while they are alive; until cancelled."""

    @abstractmethod
    async def watched(self) -> bool:
        """Whether the trigger of every run has begun its work; True where that cannot be known."""

    @abstractmethod
    async def end(self, index: int) -> float:
        """End this run well; returns the time (seconds since the epoch) just before the cluster was told."""

    @abstractmethod
    async def remove(self) -> None:
        """Leave nothing in the cluster."""


async def for_all(count: int, action: Callable[[int], Coroutine[None, None, T]]) -> list[T]:
    """Do something for each of ``range(count)``, a few at a time; results in order."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> T:
        async with limit:
            return await action(index)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index)) for index in range(count)]
    return [task.result() for task in tasks]


async def in_turn(count: int, every: float, action: Callable[[int], Coroutine[None, None, None]]) -> None:
    """For ever: each of ``range(count)`` once in ``every`` seconds, evenly spread. Nobody waits for who is late.

    Args:
        count: how many.
        every: seconds; 0: nothing is done.
        action: what is done for one.
    """
    if every <= 0:
        await asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    due = loop.time()
    async with asyncio.TaskGroup() as group:
        while True:
            for index in range(count):
                await asyncio.sleep(max(0.0, due - loop.time()))
                due += every / count
                group.create_task(action(index))
