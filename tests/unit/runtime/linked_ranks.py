"""A session of Horovod's engine whose ranks are processes of a test, each with a link as an agent hands it down."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from elastic_runtime.engines.base import SessionCallbacks
from elastic_runtime.engines.horovod.session import HorovodSession
from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.rank_link import (
    EngineWord,
    MayEnd,
    TrainingEnded,
    decode_rank_message,
    encode_rank_message,
)
from elastic_runtime.protocol.rank_sockets import RANK_FD
from elastic_runtime.world import WORLD

SOON = 25.0
"""Seconds after which what should have happened has not."""


class Ranks:
    """Implements RankRunner. What a test asks for is done in a thread with an event loop of its own.

    Args:
        script: of every rank.
        environment: of it, besides.
    """

    def __init__(self, script: str, environment: Mapping[str, str]) -> None:
        self._script, self._environment = textwrap.dedent(script), environment
        self._loop = asyncio.new_event_loop()
        self._links: dict[str, socket.socket] = {}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.worlds: queue.Queue[list[str]] = queue.Queue()
        self._held: dict[str, list[bytes]] = {}
        """Words that are kept back, of ranks to which none is brought."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="session")
        self._thread.start()
        self.session = self.do(self._make)

    def _make(self) -> HorovodSession:
        return HorovodSession(self, SessionCallbacks(_ignore, self.worlds.put, _ignore, _ignore))

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in the session's thread, and return the result."""

        async def call() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(SOON)

    def open(self, *rank_ids: str) -> None:
        """Start them."""
        self.do(self.session.open, rank_ids, len(rank_ids))

    def hold(self, rank_id: str) -> None:
        """It hears nothing until :meth:`let_hear`."""
        self._held[rank_id] = []

    def let_hear(self, rank_id: str) -> None:
        """It hears what it was told, too."""
        self._links[rank_id].send(b"".join(self._held.pop(rank_id)))

    def output(self, rank_id: str) -> tuple[str, str]:
        """All that it has written, when it has ended."""
        return self.processes[rank_id].communicate(timeout=2 * SOON)

    def close(self) -> None:
        """End them."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        asyncio.run_coroutine_threadsafe(self.session.close(0.0), self._loop).result(SOON)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for process in self.processes.values():
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()

    # RankRunner

    def interface(self, rank_id: str) -> str:
        return "lo"

    def host(self, rank_id: str) -> str:
        return rank_id

    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str]) -> int:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                given = {**os.environ, **self._environment, **environment, RANK_FD: str(theirs.fileno())}
                given[WORLD] = "elastic_runtime.engines.horovod.world:WORLD"
                process = self.processes[rank_id] = subprocess.Popen(  # noqa: ASYNC220 - a test can wait
                    [sys.executable, "-c", self._script],
                    env=given, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
            self._links[rank_id] = ours
            lines = LineReader()
            while data := await self._receive(ours):
                for plain in lines.feed(data):
                    self._hear(rank_id, decode_rank_message(plain))
            return await asyncio.to_thread(process.wait)

    async def _receive(self, ours: socket.socket) -> bytes:
        try:
            return await self._loop.sock_recv(ours, 65536)
        except ConnectionResetError:
            return b""

    def _hear(self, rank_id: str, message: object) -> None:
        if isinstance(message, EngineWord):
            self.session.heard(rank_id, message.word)
        elif isinstance(message, TrainingEnded):
            self._links[rank_id].send(encode_rank_message(MayEnd()))

    def tell(self, rank_id: str, word: Mapping[str, Any]) -> None:
        line = encode_rank_message(EngineWord(word))
        if rank_id in self._held:
            self._held[rank_id].append(line)
        else:
            self._links[rank_id].send(line)

    def stop_rank(self, rank_id: str, *, stacks: bool = False) -> None:
        self.processes[rank_id].kill()

    def stop_ranks(self, *, stacks: Collection[str] = ()) -> None:
        for process in self.processes.values():
            process.kill()

    def interrupt_ranks(self) -> None:
        raise AssertionError("ranks of this engine go from world to world")

    def kill_ranks(self, *, stacks: bool = False) -> None:
        raise AssertionError("ranks of this engine go from world to world")


def _ignore(*_arguments: object) -> None:
    return


@contextmanager
def linked_ranks(script: str, **environment: str) -> Iterator[Ranks]:
    """Of which none is left behind."""
    made = Ranks(script, environment)
    try:
        yield made
    finally:
        made.close()


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Its result, or what it raised."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to the one who asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="of the test", daemon=True).start()
    return future
