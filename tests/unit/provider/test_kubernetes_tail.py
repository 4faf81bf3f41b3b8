"""The log of a run with several launchers, on virtual time. Real ones: tests/kubernetes/test_log.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from elastic_runtime.kubernetes.objects import Pod
from elastic_training.clusters.kubernetes.watching.cursor import Cursor
from elastic_training.clusters.kubernetes.watching.log import SILENCE, Tail
from elastic_training.clusters.types import RunRef
from tests.unit.provider.kubernetes_objects import RUNNING, after, pod
from tests.unit.provider.virtual_time import run_virtually

HOUR = 3600.0


class Launchers:
    """A hub that has pods, and client of itself, which has their logs."""

    def __init__(self) -> None:
        self.client = self
        self.there: list[Pod] = []
        self.looks = 0
        self._logs: dict[str, asyncio.Queue[bytes]] = {}
        self._changed: set[asyncio.Event] = set()

    def add(self, name: str) -> None:
        """A launcher, after those that there are."""
        self.there.append(pod(name, created=after(len(self.there)), phase="Running", state=RUNNING))
        self._logs[name] = asyncio.Queue()
        self.tell()

    def tell(self) -> None:
        for event in self._changed:
            event.set()

    def write(self, name: str, *lines: str) -> None:
        stamp = after(len(self.there)).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")
        self._logs[name].put_nowait("".join(f"{stamp} {line}\n" for line in lines).encode())

    def pods(self, _ref: RunRef) -> list[Pod]:
        self.looks += 1
        return self.there

    @contextmanager
    def subscribed(self, _name: str) -> Iterator[asyncio.Event]:
        self._changed.add(event := asyncio.Event())
        yield event
        self._changed.discard(event)

    @asynccontextmanager
    async def stream(self, _kind: Any, name: str, *_: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._pieces(name)

    async def _pieces(self, name: str) -> AsyncIterator[bytes]:
        while True:
            yield await self._logs[name].get()


def within(test: Callable[[Launchers, Tail], Awaitable[None]]) -> None:
    async def main() -> None:
        hub: Any = Launchers()
        hub.add("first")
        tail = Tail(hub, RunRef("run", "1"), Cursor(), asyncio.Event())
        reading = asyncio.create_task(tail.run())
        await asyncio.sleep(1)
        await test(hub, tail)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    run_virtually(main())


def test_a_silent_launcher_is_not_looked_at_again_and_again() -> None:
    async def test(hub: Launchers, tail: Tail) -> None:
        before = hub.looks
        await asyncio.sleep(HOUR)
        assert hub.looks == before
        hub.write("first", "late")
        await asyncio.sleep(1)
        assert tail.take().lines == ("late",)

    within(test)


def test_a_silent_launcher_is_left_once_there_is_another_one() -> None:
    async def test(hub: Launchers, tail: Tail) -> None:
        await asyncio.sleep(HOUR)
        hub.write("first", "its last")
        await asyncio.sleep(1)
        hub.add("second")
        hub.write("second", "at once")
        await asyncio.sleep(SILENCE - 2)
        assert tail.take().lines == ("its last",)
        await asyncio.sleep(2)
        assert tail.take().lines == ("at once",)

    within(test)


def test_a_launcher_that_writes_is_not_left_for_another_one() -> None:
    async def test(hub: Launchers, tail: Tail) -> None:
        hub.add("second")
        for _ in range(10):
            await asyncio.sleep(SILENCE - 2)
            hub.write("first", "still here")
        await asyncio.sleep(1)
        assert tail.take().lines == ("still here",) * 10

    within(test)


def test_a_launcher_whose_lines_are_not_taken_is_not_silent() -> None:
    async def test(hub: Launchers, tail: Tail) -> None:
        hub.write("first", *(str(number) for number in range(6000)))
        hub.write("first", "behind them")
        await asyncio.sleep(1)
        hub.add("second")
        await asyncio.sleep(10 * SILENCE)
        assert len(tail.take().lines) == 6000
        await asyncio.sleep(1)
        assert tail.take().lines == ("behind them",)

    within(test)
