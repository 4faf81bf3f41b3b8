"""One round: N runs alive, watched for a while, then some of them ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from benchmarks.deferred.api import Api
from benchmarks.deferred.control_plane import ApiServer
from benchmarks.deferred.requests import Kind, between
from benchmarks.deferred.sides import Name, Side
from benchmarks.deferred.triggerer import Airflow
from benchmarks.deferred.usage import Usage, measured

_TAKE_TIMEOUT = 300.0
_RESUME_TIMEOUT = 120.0
_LOOK = 1.0
"""Seconds between two looks at the database while waiting for it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds, but for ``ends``."""

    settle: float = 10.0
    """From the last trigger's start to the first figure."""
    window: float = 60.0
    """For which requests, CPU and memory are measured, at least."""
    window_each: float = 0.2
    """Seconds that it is for each run, at least: 200 s for 1,000; ours notes each log's place once in them."""
    ends: int = 20
    """Runs that are ended after it, at most, one after the other."""
    gap: float = 1.0
    """Between two of them, on average; drawn anew for each, so that polling is met at every phase."""


@dataclass(frozen=True, slots=True)
class Round:
    """What came out of one."""

    side: Name
    count: int
    """N."""
    usage: Usage
    """Of the triggerer, in the window."""
    server: Usage
    """Of the API server, in the window; the stand-ins' own writing included."""
    requests: Counter[Kind]
    """In the window."""
    written: int
    """Status documents that stand-in launchers wrote in the window; not among the requests."""
    begun: float
    """Seconds from the triggerer's start until every trigger was at work."""
    life: Counter[Kind]
    """From the triggerer's start to its end."""
    delays: tuple[float, ...]
    """Seconds from the end of a run until its task instance was scheduled again; infinite when it never was."""

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests.total() / self.usage.seconds


@dataclass(frozen=True, slots=True)
class Bench:
    """What all rounds share."""

    server: ApiServer
    api: Api
    airflow: Airflow
    say: Callable[[str], None]

    async def play(self, side: Side, count: int, pace: Pace, seed: int) -> Round:
        """Raises TimeoutError when not every trigger starts."""
        triggers = await side.create(count)
        try:
            await asyncio.to_thread(self.airflow.defer, triggers)
            before = await self.api.answered()
            async with _background(side.live()):
                with self.airflow.triggerer(capacity=count) as triggerer:
                    begin = time.monotonic()
                    await self._until_begun(side, count)
                    begun = time.monotonic() - begin
                    await asyncio.sleep(pace.settle)
                    first, written = await self.api.answered(), side.written
                    async with measured(triggerer.popen.pid) as usage, measured(self.server.pid) as server:
                        await asyncio.sleep(max(pace.window, count * pace.window_each))
                    requests, written = between(first, await self.api.answered()), side.written - written
                    delays = await self._end_some(side, count, pace, seed)
            life = between(before, await self.api.answered())
        finally:
            await side.remove()
        return Round(side.name, count, usage, server, requests, written, begun, life, tuple(delays))

    async def _until_begun(self, side: Side, count: int) -> None:
        async with asyncio.timeout(_TAKE_TIMEOUT):
            # Another process does it, and tells nobody.
            while await self.airflow.taken() < count or not await side.watched():  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)

    async def _end_some(self, side: Side, count: int, pace: Pace, seed: int) -> list[float]:
        if side.name is Name.IDLE:
            return []
        draw = random.Random(seed)  # noqa: S311  # which runs and when, no secret
        ended: dict[int, float] = {}
        for index in draw.sample(range(count), min(count, pace.ends)):
            await asyncio.sleep(draw.uniform(0.0, 2 * pace.gap))
            ended[index] = await side.end(index)
        resumed = await self._resumed(list(ended))
        return [resumed.get(index, float("inf")) - moment for index, moment in ended.items()]

    async def _resumed(self, indices: Sequence[int]) -> dict[int, float]:
        found: dict[int, float] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESUME_TIMEOUT):
                while len(found) < len(indices):
                    await asyncio.sleep(_LOOK)
                    found = {index: moment.timestamp() for index, moment in (await self.airflow.resumed()).items()}
        if unexpected := sorted(found.keys() - set(indices)):
            self.say(f"resumed though their runs had not ended: {unexpected}")
        return found


@asynccontextmanager
async def _background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Do it beside the block; an error of it ends the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        try:
            yield
        finally:
            task.cancel()
