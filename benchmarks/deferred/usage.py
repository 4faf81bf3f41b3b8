"""What a process and those that it has forked use of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from statistics import mean

import psutil

_EVERY = 2.0
"""Seconds between two looks at the memory."""


@dataclass(slots=True)
class Usage:
    """Of a process and its descendants, over a time."""

    seconds: float = 0.0
    """How long that was."""
    cpu: float = 0.0
    """Seconds of CPU, in user and kernel mode, all processes together."""
    pss: list[int] = field(default_factory=list)
    """Bytes: memory with what is shared between processes counted once (proportional set size), a value a look."""
    rss: list[int] = field(default_factory=list)
    """Bytes: resident memory of the largest process, a value a look."""

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu / self.seconds

    @property
    def mean_pss(self) -> float:
        """Bytes."""
        return mean(self.pss)


@asynccontextmanager
async def measured(pid: int) -> AsyncIterator[Usage]:
    """Measure from here to the end of the block; the figures are whole after it."""
    usage = Usage()
    loop = asyncio.get_running_loop()
    before, begin = _cpu(pid), loop.time()
    looks = asyncio.create_task(_look(pid, usage), name="looks at memory")
    try:
        yield usage
    finally:
        looks.cancel()
        with suppress(asyncio.CancelledError):
            await looks
    usage.cpu, usage.seconds = _cpu(pid) - before, loop.time() - begin


async def _look(pid: int, usage: Usage) -> None:
    while True:
        memory = [process.memory_full_info() for process in _family(pid)]
        usage.pss.append(sum(each.pss for each in memory))
        usage.rss.append(max(each.rss for each in memory))
        await asyncio.sleep(_EVERY)


def cpu_by_process(pid: int) -> dict[int, float]:
    """Seconds of CPU so far of each living process of the family."""
    return {process.pid: _seconds(process) for process in _family(pid)}


def _cpu(pid: int) -> float:
    return sum(cpu_by_process(pid).values())


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]
