"""The ranks of one worker, through a real zygote, and what they told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from elastic_runtime.agent.ranks import Ranks
from elastic_runtime.protocol.wire import AgentMessage, Output, RankExited, RankStarted, Ready

SOON = 20.0
T = TypeVar("T")


@dataclass(eq=False)
class Worker:
    """The ranks of one worker, and what they told."""

    warm: bool
    preload: tuple[str, ...] = ("json",)
    messages: list[AgentMessage] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ranks: Ranks = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = Ranks(self._hear, os.environ, self.preload if self.warm else None)

    async def __aenter__(self) -> Worker:
        self.ranks.start(None)
        await self.until(lambda: bool(self.of(Ready)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ranks.close()

    def _hear(self, message: AgentMessage) -> None:
        self.messages.append(message)
        self.changed.set()

    def of(self, kind: type[T]) -> list[T]:
        return [each for each in self.messages if isinstance(each, kind)]

    def code(self, rank_id: str) -> int | None:
        return next((each.code for each in self.of(RankExited) if each.rank_id == rank_id), None)

    def lines(self, rank_id: str, stream: str) -> list[str]:
        found = [each for each in self.of(Output) if (each.rank_id, each.stream) == (rank_id, stream)]
        return [line for each in found for line in each.lines]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def run(self, rank_id: str, command: Sequence[str], **environment: str) -> int | None:
        self.ranks.start_rank(rank_id, command, environment, None)
        await self.until(lambda: self.code(rank_id) is not None)
        return self.code(rank_id)

    async def start(self, rank_id: str, command: Sequence[str]) -> int:
        """Until it has said ``ready``. Returns its pid."""
        self.ranks.start_rank(rank_id, command, {}, None)
        await self.until(lambda: "ready" in self.lines(rank_id, "stdout") and rank_id in self.pids())
        return self.pids()[rank_id]

    def pids(self) -> dict[str, int]:
        return {each.rank_id: each.pid for each in self.of(RankStarted)}


def with_worker(warm: bool, test: Callable[[Worker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Worker(warm) as worker:
            await test(worker)

    asyncio.run(run())


def code(text: str) -> tuple[str, ...]:
    return "python", "-c", text


class SomeWorld:
    """Of an engine whose ranks are told so."""

    def prepare(self) -> None:
        print("prepared")


WORLD = SomeWorld()


LOADER = code("""
import multiprocessing, os, signal, sys, time
for _ in range(2):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    print(child.pid)
print("ready")
if how := os.environ.get("HOW"):
    print("the last line")
    os._exit(int(how))
time.sleep(600)
""")
"""A rank with workers that hold its output open, as a DataLoader's do."""


def gone(pid: int) -> None:
    """Wait until that process has ended; its parent may not have waited for it yet."""
    try:
        process = psutil.Process(pid)
        psutil.wait_procs([process], timeout=0)
        for _ in range(int(SOON / 0.01)):
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            psutil.wait_procs([process], timeout=0.01)
    except psutil.NoSuchProcess:
        return
    raise AssertionError(f"{process} is still there")
