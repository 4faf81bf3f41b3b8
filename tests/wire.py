"""A wire between a client and a server that a test can cut: TCP, whatever is spoken on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit


class Wire:
    """The test's side of it. Every method may be called from any thread, and has happened when it returns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        self.url = ""
        self.connections = 0
        """Made so far."""
        self._loop = loop
        self._target = host, port
        self._whole = True
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """End every connection at once, and refuse others."""
        self._whole = False
        self._call(self._close_connection())

    def mend(self) -> None:
        """Let connections through again."""
        self._whole = True

    def jolt(self) -> None:
        """End every connection at once, and let others through."""
        self._call(self._close_connection())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        mine = {writer}
        self._open.add(writer)
        try:
            if not self._whole:
                return
            self.connections += 1
            theirs, to_them = await asyncio.open_connection(*self._target)
            mine.add(to_them)
            self._open.add(to_them)
            await asyncio.gather(_pass(reader, to_them), _pass(theirs, writer))
        except OSError:
            return
        finally:
            self._open -= mine
            for end in mine:
                end.transport.abort()

    async def _close_connection(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof() if writer.can_write_eof() else writer.close()


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """To the server of ``https://host:port``; :attr:`Wire.url` is its other end."""
    target = urlsplit(url)
    assert target.hostname
    assert target.port
    loop = asyncio.new_event_loop()
    made = Wire(loop, target.hostname, target.port)
    ready, stop = threading.Event(), asyncio.Event()

    async def work() -> None:
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        made.url = f"{target.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        async with server:
            await stop.wait()
            made._whole = False
            await made._close_connection()
            await _settled()

    thread = threading.Thread(target=_run, args=(loop, work), name="wire")
    thread.start()
    try:
        assert ready.wait(10)
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


async def _settled() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


def _run(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())
