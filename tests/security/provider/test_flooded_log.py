"""A script that prints long lines faster than they are passed on fills no triggerer's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from elastic_runtime.kubernetes.objects import Pod
from elastic_training.clusters.kubernetes.watching import log
from elastic_training.clusters.kubernetes.watching.cursor import Cursor
from elastic_training.clusters.types import RunRef

LINE = b"2026-03-01T12:00:00.000000000Z " + b"x" * 65536 + b"\n"
PIECES = 1000
LAUNCHER = Pod(
    {
        "metadata": {"name": "run-launcher", "uid": "1", "creationTimestamp": "2026-03-01T12:00:00Z"},
        "status": {"containerStatuses": [{"name": "launcher", "state": {"running": {}}}]},
    }
)


class Flood:
    """A hub whose one launcher has a log of 64 MiB to send, and client of itself."""

    def __init__(self) -> None:
        self.client, self.sent = self, 0

    def pods(self, _ref: RunRef) -> list[Pod]:
        return [LAUNCHER]

    @contextmanager
    def subscribed(self, _name: str) -> Iterator[asyncio.Event]:
        yield asyncio.Event()

    @asynccontextmanager
    async def stream(self, *_request: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while self.sent < PIECES:
            self.sent += 1
            yield LINE
        await asyncio.Event().wait()


async def taken_in_pieces(hub: Any) -> list[int]:
    """Characters that were there each time when nothing more came."""
    tail = log.Tail(hub, RunRef("run", "1"), Cursor(), asyncio.Event())
    reading = asyncio.create_task(tail.run())
    lines, sizes = 0, []
    while lines < PIECES:
        before = hub.sent
        for _ in range(10):
            await asyncio.sleep(0)
        if hub.sent == before:
            taken = tail.take().lines
            lines += len(taken)
            sizes.append(sum(map(len, taken)))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return sizes


def test_long_lines_wait_at_the_server() -> None:
    assert max(asyncio.run(taken_in_pieces(Flood()))) < 10 << 20
