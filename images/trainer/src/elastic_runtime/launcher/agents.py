"""The launcher's end of its agents: who is connected, and what they say. Mutual TLS; JSON lines.

Any peer can reach the port. Connections that have not begun TLS (:func:`client_hello`), or have not sent who they are,
are limited in number, time and bytes (:mod:`.limits`). Connections whose ClientHello has the run's watchword
(:func:`~elastic_runtime.net.certificates.watchword`) have a limit of their own. After that, messages have a rate limit
(:class:`ThrottledReader`).
What an agent says is checked against the run and against who it is (:mod:`elastic_runtime.protocol.plausible`). Whether
it is in the worker that it says it is, the place knows (:meth:`~elastic_runtime.launcher.platform.WorkerSet.prove`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from asyncio import sslproto
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from ssl import SSLContext
from typing import Any

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.joining import Joining
from elastic_runtime.launcher.limits import ConnectionLimit, FailureLimit
from elastic_runtime.net.certificates import AGENT, JOIN, certified_name, launcher_context, watchword
from elastic_runtime.net.descriptors import descriptor_limit
from elastic_runtime.net.framing import LineReader
from elastic_runtime.pace import Pace, RateLimitedLog
from elastic_runtime.printable import LONG, printable
from elastic_runtime.protocol.plausible import check_agent, check_hello
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.protocol.wire import (
    AgentMessage,
    Hello,
    LauncherMessage,
    Message,
    Output,
    RankSaid,
    Welcome,
    decode,
    encode,
)
from elastic_runtime.run.join import is_joined
from elastic_runtime.run.spec import RunSpec

# Whether somebody who connects begins TLS, found out before TLS costs anything.
#
# A record of TLS says its type, its version and its length in five bytes (RFC 8446, section 5.1), and the first record
# of a connection holds the ClientHello. The system is asked to wake this process when all of that record is there
# (``SO_RCVLOWAT``, socket(7)); it is looked at and left in the socket, for TLS to read.

HEADER = 5
"""Bytes of a record's header."""
HANDSHAKE, CLIENT_HELLO = 22, 1
"""The record's type, and its content's."""
LEAST, MOST = 40, 16 * 1024
"""Bytes of a record that can hold a ClientHello."""


async def client_hello(sock: socket.socket) -> bytes:
    """Return a possible ClientHello, once the whole record is in the non-blocking socket.

    Raises:
        InvalidDocument: what has come cannot be the begin of one, or no more comes.
        OSError: the connection is lost.
    """
    header = await _peek(sock, HEADER)
    length = int.from_bytes(header[3:5], "big")
    if header[0] != HANDSHAKE or header[1] != 3 or not LEAST <= length <= MOST:
        raise InvalidDocument("it does not begin TLS")
    record = await _peek(sock, HEADER + length)
    if record[HEADER] != CLIENT_HELLO:
        raise InvalidDocument("it begins TLS with something else than a ClientHello")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return record


async def _peek(sock: socket.socket, size: int) -> bytes:
    """That many bytes, once they are there. Raises as :func:`client_hello` does."""
    try:
        if len(found := sock.recv(size, socket.MSG_PEEK)) == size:
            return found
    except BlockingIOError:
        pass
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    await _readable(sock.fileno())
    found = sock.recv(size, socket.MSG_PEEK)
    if len(found) < size:
        raise InvalidDocument("it closed the connection before it sent anything")
    return found


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    come = asyncio.Event()
    loop.add_reader(descriptor, come.set)
    try:
        await come.wait()
    finally:
        loop.remove_reader(descriptor)


log = logging.getLogger(__name__)

GREETING = 10.0
"""Seconds from a connection's begin to the end of its hello, with TLS's handshake in between."""
SEATS = 64
"""Connections that have begun TLS and not said who they are."""
SILENT = 256
"""Connections that have not begun TLS; they cost little as long as they stay."""
ARRIVALS = 1000.0
"""Connections a second, of which each takes about a quarter of a millisecond."""
HANDSHAKES = 50.0
"""A second, that do not make an agent known: each takes a millisecond or two of the one core that the launcher has."""
TLS_BUFFER = 16 * 1024
"""Bytes that asyncio keeps for what a TLS connection reads: one record. By default 256 KiB, from the handshake until
Python's collector of cycles comes by, which a flood of strangers makes 250 MB."""
BACKLOG = 8 * 1024 * 1024
"""Bytes that wait for an agent that does not read, at most."""
MAX_INVALID_MESSAGES = 10
"""Invalid messages after which an agent is disconnected."""
AGAIN = 1.0
"""Seconds between two connections of one agent, at least: each is told of in the log and in the status."""
STOOD_STILL = 1.0
"""Seconds that a timer is late where this process was stopped: its agents were not silent then, it was deaf."""
TOLD = 1000
"""Workers of which the log says why they were refused, at most; of each once, until it is connected."""
PAUSE = 0.2
"""Seconds before another try, when this process cannot take a connection."""
Prove = Callable[[Hello], Awaitable[str | None]]
"""Function like :meth:`elastic_runtime.launcher.platform.WorkerSet.prove`."""
HELLO = 8192
"""Bytes of the first line, most of which are the agent's token."""
MESSAGE = 1024 * 1024
"""Bytes of any later one; a rank's output comes in pieces of 128 KiB at most, which JSON's escapes may make six times
as long."""
CHUNK = 65536
MESSAGES, BYTES, OUTPUT_LINES, KEYS = 2000.0, 16e6, 100_000.0, 400_000.0
"""Limits for one agent in a second; keys are those of an engine's store that a rank's word names."""
BURST = 1.0
"""Seconds' worth that may come at once."""
TURN = 0.01
"""Seconds' worth after which it is somebody else's turn."""


@dataclass(slots=True, eq=False)
class AgentConnection:
    """One agent, from its hello to its end."""

    hello: Hello
    """With the worker's name in this run."""
    writer: asyncio.StreamWriter = field(repr=False)
    address: str = ""
    """IP address that it connects from."""
    heard: float = 0.0
    """Event loop time of its last message."""
    invalid_messages: int = 0
    """Messages that could not be true."""
    given_up: str = ""
    """Why the launcher has marked it lost, for people; its processes may be there still."""

    def send(self, message: LauncherMessage) -> None:
        """Queue a message; one for an agent that is gone is dropped, since its end is being told."""
        if self.writer.is_closing():
            return
        self.writer.write(encode(message))
        if self.writer.transport.get_write_buffer_size() > BACKLOG:
            self.give_up("its agent is not reading its messages")

    def give_up(self, reason: str) -> None:
        """Mark the agent lost, though its processes may be there still."""
        self.given_up = reason
        log.warning("marking %s lost: %s", self.hello.worker, reason)
        self.abort()

    def abort(self) -> None:
        """Cut the connection; the end is then told as any other."""
        self.writer.transport.abort()


@dataclass(slots=True, eq=False)
class _Stranger:
    """A connection that has been accepted."""

    sock: socket.socket
    address: str
    begun: bool = False

    def forget(self, _task: object) -> None:
        """The task that was to serve it is over, and may have been cancelled before it began."""
        if not self.begun:
            self.sock.close()


@dataclass(frozen=True, slots=True)
class _Door:
    """Where those wait who have begun TLS."""

    connections: ConnectionLimit
    failures: FailureLimit


async def _believe(_hello: Hello) -> str | None:
    return None


class AgentServer:
    """Accepts agents.

    Horovod never forgets a name, and a worker that dials again is as good as a new one. So each connection gets a name
    of its own: what the agent calls itself, and for every connection after that another one
    (:class:`~elastic_runtime.protocol.rank_names.WorkerName`).

    Args:
        spec: every agent is welcomed with it.
        on_arrival, on_end: told in the event loop's thread, in the order of happening.
        on_message: the same; raises InvalidDocument for what cannot be true.
        used: names that cannot be given any more.
        expected: whether a worker that calls itself so can be there.
        prove: why an agent is not in the worker that it says it is; by default everybody with a certificate is.
        admit: told the hello of an agent that is let in, with its token, before ``on_arrival``.
        joining: lets machines join by hand; None: they may not.
    """

    def __init__(
        self,
        spec: RunSpec,
        on_arrival: Callable[[AgentConnection], None],
        on_message: Callable[[AgentConnection, AgentMessage], None],
        on_end: Callable[[AgentConnection], None],
        used: Iterable[str] = (),
        expected: Callable[[str], bool] = lambda _worker: True,
        prove: Prove = _believe,
        admit: Callable[[Hello], None] = lambda _hello: None,
        joining: Joining | None = None,
    ) -> None:
        self._spec, self._expected, self._prove, self._admit = spec, expected, prove, admit
        self._joining = joining
        self._refused: set[str] = set()
        """Names that agents call themselves, of which the log has said why they may not connect."""
        self._on_arrival, self._on_message, self._on_end = on_arrival, on_message, on_end
        self._used = set(used)
        self._redials: dict[str, tuple[int, float]] = {}
        """By the name that the agent calls itself: connections so far, and when the last one began."""
        self._connections: dict[str, AgentConnection] = {}
        """By the same name."""
        # Each of them may be about to be replaced. Other parts of the launcher need descriptors, too.
        descriptors = descriptor_limit()
        self._most = min(2 * spec.workers.maximum + 2, descriptors // 2)
        # All agents dial at once when a launcher has been replaced.
        self._silent = ConnectionLimit(min(SILENT + spec.workers.maximum, descriptors // 8))
        self._seats = min(SEATS, descriptors // 16), min(SEATS + spec.workers.maximum, descriptors // 8)
        """For strangers, and for those that know the run."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._limited_log = RateLimitedLog(log)
        self._socket: socket.socket | None = None

    async def start(self, tls: Path, address: str, port: int = 0) -> int:
        """Listen. Returns the port. From now on TLS connections of this process have a :data:`TLS_BUFFER`."""
        sslproto.SSLProtocol.max_size = TLS_BUFFER
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=128)
        self._socket.setblocking(False)
        self._track(self._accept(self._socket, launcher_context(tls), watchword(tls).encode()))
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        """Hang up on everybody and stop listening."""
        for connection in list(self._connections.values()):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket:
            self._socket.close()

    def _track(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket, context: SSLContext, word: bytes) -> None:
        """Until cancelled. What the system cannot give now, it may give later."""
        loop = asyncio.get_running_loop()
        pace = Pace(ARRIVALS, ARRIVALS, loop.time)
        doors = [_Door(ConnectionLimit(seats), FailureLimit(HANDSHAKES, loop.time)) for seats in self._seats]
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:
                self._limited_log.warning("no connection can be taken now: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            stranger = _Stranger(sock, str(address[0]))
            task = self._track(self._serve(stranger, context, lambda hello: doors[word in hello]))
            task.add_done_callback(stranger.forget)
            self._seat(self._silent, stranger, task)
            await asyncio.sleep(pace.pay(1))

    def _seat(self, connections: ConnectionLimit, stranger: _Stranger, task: asyncio.Task[None]) -> None:
        if connections.enter(stranger.address, task):
            self._limited_log.warning("more connections than seats: one that has not said who it is had to go")

    async def _serve(self, stranger: _Stranger, context: SSLContext, door_of: Callable[[bytes], _Door]) -> None:
        stranger.begun = True
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(GREETING):
                client = await client_hello(stranger.sock)
                door, joining = door_of(client), self._joining if JOIN.encode() in client else None
                self._silent.leave(stranger.address, task)
                self._seat(door.connections, stranger, task)
                await door.failures.wait(stranger.address)
                reader, writer = await _handshake(stranger.sock, joining.context if joining else context)
                if joining:
                    if await joining.serve(reader, writer, stranger.address):
                        door.failures.give_back()
                    return
                throttled = ThrottledReader(reader)
                hello = await self._handshake(throttled, certified_name(writer.get_extra_info("peercert")))
            if hello is None:
                return
            door.failures.give_back()
            door.connections.leave(stranger.address, task)
            await self._converse(hello, throttled, writer, stranger.address)
        except (OSError, InvalidDocument) as error:  # ssl.SSLError and TimeoutError are some, too
            self._limited_log.warning(
                "connection from %s: %s", stranger.address, printable(str(error) or "no hello in time")
            )
        finally:
            # Nobody is owed a farewell, for which a stranger could keep the descriptor.
            stranger.sock.close() if writer is None else writer.transport.abort()

    async def _refuse(self, own: str, refusal: str) -> None:
        """Say why, and hang up after a while, or it would dial again at once."""
        if own not in self._refused and len(self._refused) < TOLD:
            self._refused.add(own)
            log.warning("refusing an agent that calls itself %s: %s", own, printable(refusal, LONG))
        await asyncio.sleep(AGAIN)

    def _may_be(self, own: str, certified: str) -> bool:
        """Whether an agent may call itself so, with a certificate of that name."""
        if certified == AGENT:  # Of the place's workers, none of which is called as those that join.
            return not is_joined(own) and self._expected(own)
        return own == certified and self._joining is not None and self._joining.expects(own)

    async def _handshake(self, throttled: ThrottledReader, certified: str) -> Hello | None:
        """None for one that is refused, of which the log has said why. Raises InvalidDocument, or OSError."""
        hello = await throttled.next()
        if not isinstance(hello, Hello):
            raise InvalidDocument("somebody with a certificate of this run connected, but said no hello")
        check_hello(hello, self._spec.workers.slots)
        own = hello.worker
        if not self._may_be(own, certified):
            raise InvalidDocument(f"an agent sent the worker name {own}, which this run does not have")
        if certified == AGENT and (refusal := await self._prove(hello)):
            await self._refuse(own, refusal)
            return None
        last = self._redials.get(own, (0, float("-inf")))[1]
        await asyncio.sleep(max(0.0, last + AGAIN - asyncio.get_running_loop().time()))
        if own in self._connections:
            raise InvalidDocument(f"a second agent calls itself {own}; it is turned away")
        if len(self._connections) >= self._most:
            raise InvalidDocument(f"{own} is turned away: {self._most} agents are here")
        return hello

    def _new_name(self, own: str) -> str:
        begin = self._redials.get(own, (0, 0.0))[0]
        redial, name = next((n, name) for n in count(begin) if (name := str(WorkerName(own, n))) not in self._used)
        self._redials[own] = redial + 1, asyncio.get_running_loop().time()
        return name

    async def _converse(
        self, hello: Hello, throttled: ThrottledReader, writer: asyncio.StreamWriter, address: str
    ) -> None:
        own, loop = hello.worker, asyncio.get_running_loop()
        connection = AgentConnection(replace(hello, worker=self._new_name(own), token=""), writer, address)
        self._connections[own] = connection
        self._admit(hello)
        self._refused.discard(own)
        connection.heard = loop.time()
        throttled.welcome()
        connection.send(Welcome(self._spec, connection.hello.worker))
        self._on_arrival(connection)
        watch = loop.create_task(self._watch_silence(connection))
        try:
            while connection.invalid_messages < MAX_INVALID_MESSAGES and (message := await throttled.next()):
                connection.heard = loop.time()
                self._handle(connection, message)
        finally:
            watch.cancel()
            del self._connections[own]
            self._on_end(connection)

    def _handle(self, connection: AgentConnection, message: Message) -> None:
        name = connection.hello.worker
        try:
            if not isinstance(message, AgentMessage):
                raise InvalidDocument(f"an order for agents ({type(message).__name__})")
            check_agent(message, name, connection.hello.slots)
            self._on_message(connection, message)
        except InvalidDocument as error:
            connection.invalid_messages += 1
            self._limited_log.warning("%s says what cannot be: %s", name, printable(error))
            if connection.invalid_messages == MAX_INVALID_MESSAGES:
                log.warning("%s sent %d invalid messages; closing the connection", name, MAX_INVALID_MESSAGES)

    async def _watch_silence(self, connection: AgentConnection) -> None:
        limit, loop = self._spec.timing.agent_silence, asyncio.get_running_loop()
        while (silence := loop.time() - connection.heard) < limit:
            wakes = loop.time() + limit - silence
            await asyncio.sleep(limit - silence)
            if loop.time() - wakes > STOOD_STILL:  # What was sent while this process was stopped is still to be read.
                connection.heard = loop.time()
        connection.give_up(f"its agent has been silent for {limit:.0f} s")


async def _handshake(sock: socket.socket, context: SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, of which ssl.SSLError is one."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    # asyncio does so itself, but not for a socket that was accepted from one that names no protocol. A second message
    # to an agent would wait for the acknowledgement of the first, for which the agent's system takes 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, sock, ssl=context, ssl_handshake_timeout=GREETING
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _keys(message: Message) -> int:
    said = message.message.get("word") if isinstance(message, RankSaid) else None
    named = said.get("keys") if isinstance(said, Mapping) else None
    return len(named) if isinstance(named, list) else 0


class ThrottledReader:
    """Reader of one agent's messages, at a rate that leaves time for others and limits the launcher's memory.

    A message, a byte and a line of output each cost a share of a second. An agent that sends more than a second's worth
    in a second is not read for a while; then its side of the connection fills up, and it has to wait.

    Args:
        reader: of the connection; its own limit is :data:`CHUNK`.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._lines = reader, LineReader(HELLO)
        self._found: Iterator[dict[str, Any]] = iter(())
        self._pace = Pace(1.0, BURST, asyncio.get_running_loop().time)
        self._owed = 0.0

    def welcome(self) -> None:
        """It is an agent: its lines may be longer from now on."""
        self._lines.allow(MESSAGE)

    async def next(self) -> Message | None:
        """Return the next message; None once the agent has disconnected.

        Raises:
            InvalidDocument: it talks nonsense, or too long.
            OSError: the connection is lost.
        """
        while (plain := next(self._found, None)) is None:
            data = await self._reader.read(CHUNK)
            if not data:
                return None
            await self._pay(len(data) / BYTES)
            self._found = self._lines.feed(data)
        message = decode(plain)
        lines = len(message.lines) if isinstance(message, Output) else 0
        await self._pay(1 / MESSAGES + lines / OUTPUT_LINES + _keys(message) / KEYS)
        return message

    async def _pay(self, seconds: float) -> None:
        self._owed += seconds
        if self._owed >= TURN:
            owed, self._owed = self._owed, 0.0
            await asyncio.sleep(self._pace.pay(owed))
