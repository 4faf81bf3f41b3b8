"""The launcher's end of its agents: who is connected, and what they say. Mutual TLS; JSON lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from elastic_runtime.certificates import launcher_context
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.framing import MAX_LINE, decode_line
from elastic_runtime.rank_names import WorkerName
from elastic_runtime.spec import RunSpec
from elastic_runtime.wire import AgentMessage, Hello, LauncherMessage, Message, Welcome, decode, encode

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class AgentConnection:
    """One agent, from its hello to its end."""

    hello: Hello
    """With the worker's name in this run."""
    writer: asyncio.StreamWriter = field(repr=False)
    heard: float = 0.0
    """Event loop time of its last message."""

    def send(self, message: LauncherMessage) -> None:
        """Queue a message; one for an agent that is gone is dropped, since its end is being told."""
        if not self.writer.is_closing():
            self.writer.write(encode(message))

    def abort(self) -> None:
        """Cut the connection; the end is then told as any other."""
        self.writer.transport.abort()


class AgentServer:
    """Accepts agents.

    Horovod never forgets a name, and a worker that dials again is as good as a new one. So each connection gets a name
    of its own: what the agent calls itself, and for every connection after that another one
    (:class:`~elastic_runtime.rank_names.WorkerName`).

    Args:
        spec: every agent is welcomed with it.
        used: names that cannot be given any more.
        on_arrival, on_message, on_end: told in the event loop's thread, in the order of happening.
    """

    def __init__(
        self,
        spec: RunSpec,
        on_arrival: Callable[[AgentConnection], None],
        on_message: Callable[[AgentConnection, AgentMessage], None],
        on_end: Callable[[AgentConnection], None],
        used: Iterable[str] = (),
    ) -> None:
        self._spec = spec
        self._on_arrival, self._on_message, self._on_end = on_arrival, on_message, on_end
        self._used = set(used)
        self._connections: dict[str, AgentConnection] = {}
        """By the name that the agent calls itself."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def start(self, tls: Path, address: str, port: int = 0) -> int:
        """Listen. Returns the port."""
        self._server = await asyncio.start_server(self._serve, address, port, ssl=launcher_context(tls), limit=MAX_LINE)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Hang up on everybody and stop listening."""
        self._server.close()
        for connection in list(self._connections.values()):
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            hello = await _receive(reader)
            if isinstance(hello, Hello):
                await self._converse(hello, reader, writer)
            else:
                log.warning("somebody with a certificate of this run connected, but said no hello")
        finally:
            writer.close()

    def _new_name(self, own: str) -> str:
        name = next(name for n in count() if (name := str(WorkerName(own, n))) not in self._used)
        self._used.add(name)
        return name

    async def _converse(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own, loop = hello.worker, asyncio.get_running_loop()
        if own in self._connections:
            log.warning("a second agent calls itself %s; it is turned away", own)
            return
        connection = AgentConnection(replace(hello, worker=self._new_name(own)), writer)
        self._connections[own] = connection
        connection.heard = loop.time()
        connection.send(Welcome(self._spec, connection.hello.worker))
        self._on_arrival(connection)
        watch = loop.create_task(self._watch_silence(connection))
        try:
            while message := await _receive(reader):
                connection.heard = loop.time()
                self._on_message(connection, message)  # type: ignore[arg-type]  # others are ignored by the receiver
        finally:
            watch.cancel()
            del self._connections[own]
            self._on_end(connection)

    async def _watch_silence(self, connection: AgentConnection) -> None:
        limit, loop = self._spec.timing.agent_silence, asyncio.get_running_loop()
        while (silence := loop.time() - connection.heard) < limit:  # noqa: ASYNC110 - awaits the end of a silence
            await asyncio.sleep(limit - silence)
        log.warning("%s has been silent for %.0f s: taken as lost", connection.hello.worker, limit)
        connection.abort()


async def _receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the agent has hung up, or talks nonsense."""
    try:
        line = await reader.readline()
        return decode(decode_line(line)) if line.endswith(b"\n") else None
    except (OSError, ValueError, InvalidDocument) as error:  # ValueError: a line over the limit
        log.warning("connection of an agent: %s", error)
        return None
