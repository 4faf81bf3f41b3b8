"""A rendezvous server that speaks what Horovod's ranks expect, on one event loop instead of a thread per request.

A reset of *n* ranks makes about 12 n² requests, each on a connection of its own: six rendezvous, in each of which every
rank stores its addresses, waits for everybody's, reads them, and says that it is done (horovod/common/gloo/
gloo_context.cc, http_store.cc). Upstream answers each in a new thread, 404 while a key is missing, and is asked again
10 ms later; this one answers when the key is there.

The protocol, as far as ranks use it::

    PUT    /SCOPE/KEY     store                  PUT /worker_addresses/HOST:SLOT    register, once a rank
    GET    /SCOPE/KEY     read; 404: ask again   GET /rank_and_size/HOST:SLOT       next world; waits at a barrier
    DELETE /SCOPE/RANK    this rank is done there
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from elastic_runtime.errors import InvalidDocument

log = logging.getLogger(__name__)

BACKLOG = 1024
MAX_REQUEST = 1024 * 1024
"""Bytes. What a rank stores takes some hundred."""
LONG_POLL = 2.0
"""Seconds that a GET waits for its key before it is answered 404."""
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 410: "Gone"}

Respond = Callable[[int, bytes], None]
"""Answers one request: status and body. May be called from the event loop's thread only."""


class Handler:
    """What the server does not know by itself: ranks and worlds. Methods raise InvalidDocument for a bad request."""

    def get(self, scope: str, key: str) -> Callable[[], bytes] | None:
        """A function that finds the value and may block, run in a thread of its own; None: it is an ordinary key."""
        raise NotImplementedError

    def put(self, scope: str, key: str, value: bytes, peer: str) -> bool:
        """Whether it has taken this value, sent from the address ``peer``, which is then not stored. Does not block."""
        raise NotImplementedError

    def finished(self, scope: str, key: str) -> None:
        """A rank is done in that scope. Does not block."""
        raise NotImplementedError


class Store:
    """Keys and values by scope, and who waits for them. Confined to the event loop."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._waiting: dict[tuple[str, str], list[Respond]] = defaultdict(list)
        self._sizes: dict[str, int] = {}
        self._finished: dict[str, set[str]] = defaultdict(set)
        self._refused = False

    def begin(self, sizes: dict[str, int]) -> None:
        """A new world: forget all; so many ranks will be done in each of these scopes."""
        self._values.clear()
        self._finished.clear()
        self._sizes = sizes
        self._refused = False

    def refuse(self) -> None:
        """The present world will never be complete: whoever asks, or waits, for a key is told so."""
        self._refused = True
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop()(410, b"")

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Store, and answer who waits for it."""
        self._values[scope][key] = value
        for respond in self._waiting.pop((scope, key), ()):
            respond(200, value)

    def get(self, scope: str, key: str, respond: Respond, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Answer now, or when it is there, or with 404 after :data:`LONG_POLL`."""
        value = self._values[scope].get(key)
        if self._refused:
            respond(410, b"")
            return
        if value is not None:
            respond(200, value)
            return
        waiting = self._waiting[scope, key]
        waiting.append(respond)

        def give_up() -> None:
            if respond in waiting:
                waiting.remove(respond)
                respond(404, b"")

        later(LONG_POLL, give_up)

    def finish(self, scope: str, key: str) -> None:
        """That rank is done there; when all are, the scope is emptied. In a scope of no known size, the key is."""
        size = self._sizes.get(scope)
        if size is None:
            self._values[scope].pop(key, None)
            return
        self._finished[scope].add(key)
        if len(self._finished[scope]) == size:
            self._values.pop(scope, None)
            self._finished.pop(scope)


class _Connection(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self, server: RendezvousServer) -> None:
        self._server = server
        self._data = b""
        self._transport: asyncio.Transport
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a TCP server, so a Transport
        self._peer = str(transport.get_extra_info("peername", [""])[0])
        self._server.connections.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, body = self._data.partition(b"\r\n\r\n")
        if len(self._data) > MAX_REQUEST:
            self.respond(400, b"")
        elif separator:
            self._read(head, body)

    def _read(self, head: bytes, body: bytes) -> None:
        first, *headers = head.decode("latin-1").split("\r\n")
        found = dict(line.lower().split(":", 1) for line in headers if ":" in line)
        length, words = found.get("content-length", "0").strip(), first.split()
        if len(words) != 3 or not length.isdecimal() or int(length) > MAX_REQUEST:
            self.respond(400, b"")
        elif len(body) >= int(length):
            self._data = b""
            self._server.serve(words[0], words[1], body[: int(length)], self._peer, self.respond)

    def respond(self, status: int, body: bytes) -> None:
        if not self._transport.is_closing():
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self._transport.write(head.encode("ascii") + body)
            self._transport.close()


class RendezvousServer:
    """Stands in for ``horovod.runner.http.http_server.RendezvousServer``.

    Args:
        address: to listen on; ``127.0.0.1`` on this machine, the pod's own address on Kubernetes.
        port: 0 for any free one.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        self._address = (address, port)
        self.address: tuple[str, int]
        """On which it listens, once started."""
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._store = Store()
        self._handler: Handler
        self.connections: set[_Connection] = set()

    def start(self, handler: Handler) -> int:
        """Listen, and serve in a thread. Returns the port.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._handler = handler
        listening = socket.create_server(self._address, backlog=BACKLOG)
        self.address = listening.getsockname()
        self._loop = asyncio.new_event_loop()
        serving = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening, serving), name="rendezvous", daemon=True)
        self._thread.start()
        serving.wait()  # Or a stop() that came at once would be taken for the end of create_server(), or get lost.
        return int(self.address[1])

    def init(self, host_alloc_plan: Iterable[Any]) -> None:
        """Begin a new world, for these SlotInfos of Horovod's. Called by the driver, in its own threads."""
        sizes = {}
        for slot in host_alloc_plan:
            sizes["global"] = slot.size
            sizes[f"local_{slot.hostname}"] = slot.local_size
            sizes[f"cross_{slot.local_rank}"] = slot.cross_size
        begun = threading.Event()

        def begin() -> None:
            self._store.begin(sizes)
            begun.set()

        self._loop.call_soon_threadsafe(begin)
        begun.wait()

    def refuse(self) -> None:
        """See :meth:`Store.refuse`; until the next world begins. Horovod's C++ side then fails within two seconds."""
        with contextlib.suppress(RuntimeError):  # It has stopped meanwhile.
            self._loop.call_soon_threadsafe(self._store.refuse)

    def stop(self) -> None:
        """Hang up and free the port."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def serve(self, method: str, path: str, body: bytes, peer: str, respond: Respond) -> None:
        """One request, in the event loop, from the address ``peer``."""
        scope, _, key = path.lstrip("/").partition("/")
        if not key:
            respond(400, b"")
            return
        try:
            match method:
                case "GET":
                    self._get(scope, key, respond)
                case "PUT":
                    if not self._handler.put(scope, key, body, peer):
                        self._store.put(scope, key, body)
                    respond(200, b"")
                case "DELETE":
                    self._store.finish(scope, key)
                    self._handler.finished(scope, key)
                    respond(200, b"")
                case _:
                    respond(400, b"")
        except InvalidDocument as error:
            log.warning("refused %s %s: %s", method, path, error)
            respond(400, b"")

    def _get(self, scope: str, key: str, respond: Respond) -> None:
        find = self._handler.get(scope, key)
        if find is None:
            self._store.get(scope, key, respond, self._loop.call_later)
        else:
            threading.Thread(target=self._find, args=(find, respond), name=f"{scope}-{key}", daemon=True).start()

    def _find(self, find: Callable[[], bytes], respond: Respond) -> None:
        try:
            status, value = 200, find()
        except RuntimeError as error:  # Horovod's, for a rank that was declared dead while it waited
            log.info("no answer for a rank: %s", error)
            status, value = 404, b""
        try:
            self._loop.call_soon_threadsafe(respond, status, value)
        except RuntimeError:
            log.debug("the server has stopped before a rank was answered")

    def _run(self, listening: socket.socket, serving: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self._loop.create_server(lambda: _Connection(self), sock=listening))
        self._loop.call_soon(serving.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._hang_up(server))
            self._loop.close()

    async def _hang_up(self, server: asyncio.Server) -> None:
        # asyncio accepts a connection in a task of its own, which a closed server would make fail and leak its socket.
        while accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*accepting, return_exceptions=True)
        server.close()
        for connection in list(self.connections):
            connection.abort()
        while self.connections:  # noqa: ASYNC110 - they are gone in the loop's next round
            await asyncio.sleep(0)
