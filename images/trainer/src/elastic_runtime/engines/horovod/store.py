"""A rendezvous server in the rank itself, on loopback, for Horovod's C++ side: what it asks goes over the agent.

Gloo connects the ranks of a world in several rendezvous, each in a scope of its own (horovod/common/gloo/
gloo_context.cc, http_store.cc). There, each rank stores the addresses at which the others reach it, all in one value,
and reads everybody's, of each of which it needs the one for itself. Here the launcher has each rank's addresses once,
and brings each rank the row that is for it: see :mod:`~elastic_runtime.engines.torch.exchanges`. The protocol, as far
as Horovod uses it::

    PUT    /SCOPE/rank_N  name of the machine, of which Gloo makes nothing: dropped, and 404 to all who ask
    PUT    /SCOPE/N       this rank's addresses; it is number N there
    GET    /SCOPE/N       the other's, when all have come; 404 after LONG_POLL: ask again
    DELETE /SCOPE/N       this rank is done there
    GET    /rank_and_size/HOST:SLOT   this rank's place in the world, after a reset

Every request carries a token that only this process has, or the answer is 403, for all of a machine, or of a pod, can
connect. Of connections that have not shown it there are at most :data:`MAX_STRANGERS` at a time, each for at most
:data:`REQUEST_TIME`. It is there only while the rank connects, unless process sets may be added later.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import re
import secrets
import socket
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from elastic_runtime.engines.torch.messages import Offered
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.logs import script_logger
from elastic_runtime.net.http_head import parse_headers
from elastic_runtime.net.seats import Seats

log = script_logger(__name__)

# One request and its answer: what is read of it, how much, for how long, and from whom.

MAX_HEAD = 8 * 1024
"""Bytes of a request's first line and headers."""
MAX_BODY = 256 * 1024
"""Bytes. A rank of a world of n stores its address for each of the others in one value: 168 (n - 1)."""
REQUEST_TIME = 15.0
"""Seconds until a request must have come as a whole; a rank may be stopped for some of them."""
REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    410: "Gone",
}
_END = b"\r\n\r\n"
_FIRST = re.compile(r"(GET|PUT|DELETE) /([A-Za-z0-9_.-]{1,320})/([A-Za-z0-9_.:-]{1,320}) HTTP/1\.[01]", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,6}", re.ASCII)
TOKEN = "HOROVOD_GLOO_RENDEZVOUS_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable of a rank."""
_SCHEME = "Bearer "


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body."""

    method: str
    scope: str
    key: str
    length: int
    """Length of its body, in bytes."""


def parse_request(first: str, headers: Mapping[str, str]) -> Request:
    """Parse a request.

    Raises:
        InvalidDocument: it is nothing that a rank asks.
    """
    asked, length = _FIRST.fullmatch(first), headers.get("content-length", "0")
    if not asked or not _LENGTH.fullmatch(length) or int(length) > MAX_BODY or "transfer-encoding" in headers:
        raise InvalidDocument("not a request of a rank")
    return Request(asked[1], asked[2], asked[3], int(length))


class Server(Protocol):
    """Interface of the server that a connection needs."""

    def arrived(self, connection: Connection) -> None:
        """Register a new connection."""

    def left(self, connection: Connection) -> None:
        """The connection is gone."""

    def admit(self, connection: Connection, authorization: str) -> int:
        """Whether it is this rank, as a status; any but 200 is the answer."""

    def serve(self, connection: Connection, request: Request, body: bytes) -> None:
        """Answer the request."""


class Connection(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._data = bytearray()
        self._searched = 0
        self._request: Request | None = None
        self._served = False
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle
        self.peer = ""
        """Address of who has connected."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a TCP server, so a Transport
        self.peer = str((transport.get_extra_info("peername") or [""])[0])
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_TIME, self.abort)
        self._server.arrived(self)

    @override
    def connection_lost(self, _error: Exception | None) -> None:
        self._deadline.cancel()
        self._server.left(self)

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        if self._served:
            if not self._transport.is_closing():
                self.abort()  # A rank says nothing more.
            return
        self._data += data
        try:
            if self._request or self._read_head():
                self._read_body()
        except InvalidDocument:
            self.respond(400, b"")

    def _read_head(self) -> bool:
        end = self._data.find(_END, max(0, self._searched - len(_END) + 1), MAX_HEAD)
        self._searched = len(self._data)
        if end < 0:
            if self._searched >= MAX_HEAD:
                raise InvalidDocument("the request's head is too long")
            return False
        first, headers = parse_headers(bytes(self._data[:end]))
        status = self._server.admit(self, headers.get("authorization", ""))
        if status != 200:
            self.respond(status, b"")
            return False
        self._request = parse_request(first, headers)
        del self._data[: end + len(_END)]
        return True

    def _read_body(self) -> None:
        assert self._request
        if len(self._data) > self._request.length:
            raise InvalidDocument("more than one request")
        if len(self._data) == self._request.length:
            self._served = True
            self._deadline.cancel()
            self._server.serve(self, self._request, bytes(self._data))
            self._data.clear()

    def respond(self, status: int, body: bytes) -> None:
        """Answer and hang up; who has hung up before hears nothing."""
        self._served = True
        if not self._transport.is_closing():
            head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self._transport.write(head.encode("ascii") + body)
            self._transport.close()


BACKLOG = 1024
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before those are read that were accepted before."""
MAX_STRANGERS = 64
MAX_LOGGED = 3
"""Log lines for each kind of refusal in a server's life."""
ADDRESS = 168
"""Bytes of a pair's address: ``Address::Impl`` of the amended Gloo (gloo/transport/tcp/address.h)."""
LONG_POLL = 2.0
"""Seconds that a GET waits before it is answered 404."""
RANK_AND_SIZE = "rank_and_size"
Offer = Callable[[str, int, tuple[str, ...]], None]


class LoopbackStore:
    """The server, in a thread of its own, for one world.

    Args:
        offer: has the launcher bring the others of a scope what this rank, by its number there, has for them.
        place: of this rank, as ``rank_and_size`` has it.
    """

    def __init__(self, offer: Offer, place: str) -> None:
        self._offer, self._place = offer, place.encode("ascii")
        self._token = secrets.token_hex(32)
        self._refused = False
        self._mine: dict[str, tuple[int, int]] = {}
        """By scope: this rank's number, and how many others there are."""
        self._rows: dict[str, tuple[str, ...]] = {}
        self._waiting: dict[str, list[tuple[int, Connection]]] = {}
        self._strangers: Seats[Connection] = Seats(MAX_STRANGERS)
        self._connections: set[Connection] = set()
        self._logged: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        listening = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port = int(listening.getsockname()[1])
        serving = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening, serving), name="rendezvous", daemon=True)
        self._thread.start()
        serving.wait()  # Or a stop() that came at once would be taken for the end of create_server().

    @property
    def environment(self) -> dict[str, str]:
        """By which Horovod finds it."""
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.port),
            TOKEN: self._token,
        }

    def refuse(self) -> None:
        """The world is broken. Horovod's C++ side then fails within two seconds."""
        self._call(self._refuse)

    def offered(self, said: Offered) -> None:
        """All others have offered theirs, too."""
        self._call(self._offered, said)

    def stop(self) -> None:
        """Hang up and free the port. Idempotent."""
        self._call(self._loop.stop)
        self._thread.join()

    def arrived(self, connection: Connection) -> None:
        """One more stranger. If they are too many, the address with most of them loses its oldest."""
        self._connections.add(connection)
        if (gone := self._strangers.take(connection.peer, connection)) is not None:
            gone.abort()

    def left(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
        self._strangers.leave(connection.peer, connection)

    def admit(self, connection: Connection, authorization: str) -> int:
        """Check the token, and return the HTTP status."""
        if not hmac.compare_digest(authorization.encode(), f"{_SCHEME}{self._token}".encode()):
            self._warn("no token", "refused a request from %s to this rank's rendezvous: no token", connection.peer)
            return 403
        self._strangers.leave(connection.peer, connection)
        return 200

    def serve(self, connection: Connection, request: Request, body: bytes) -> None:
        """Answer one request of this rank."""
        scope, key = request.scope, request.key
        if scope == RANK_AND_SIZE and request.method == "GET":
            connection.respond(200, self._place)
        elif self._refused:
            connection.respond(410, b"")
        elif not _NUMBER.fullmatch(key):
            connection.respond(404 if request.method == "GET" else 200, b"")
        elif request.method == "PUT":
            self._put(scope, int(key), body)
            connection.respond(200, b"")
        elif request.method == "DELETE":
            self._mine.pop(scope, None)
            self._rows.pop(scope, None)
            connection.respond(200, b"")
        elif scope in self._rows:
            self._answer(connection, scope, int(key))
        else:
            self._waiting.setdefault(scope, []).append((int(key), connection))
            self._loop.call_later(LONG_POLL, self._wait_no_longer, scope, int(key), connection)

    def _put(self, scope: str, number: int, body: bytes) -> None:
        pieces = [body[begin : begin + ADDRESS] for begin in range(0, len(body), ADDRESS)]
        self._mine[scope] = number, len(pieces)
        if pieces:  # Most of an address is zeros.
            self._offer(scope, number, tuple(base64.b64encode(zlib.compress(each)).decode() for each in pieces))

    def _answer(self, connection: Connection, scope: str, other: int) -> None:
        """As the other's value, of which this rank looks at what is for it alone."""
        (number, others), row = self._mine[scope], self._rows[scope]
        if other == number or other > others or len(row) != others:
            connection.respond(404, b"")
            return
        address = unpacked(row[other - (other > number)])
        at = ADDRESS * (number - (number > other))
        connection.respond(200, address.rjust(at + ADDRESS, b"\0").ljust(ADDRESS * others, b"\0"))

    def _wait_no_longer(self, scope: str, number: int, connection: Connection) -> None:
        waiting = self._waiting.get(scope, [])
        if (number, connection) in waiting:
            waiting.remove((number, connection))
            connection.respond(404, b"")

    def _refuse(self) -> None:
        self._refused = True
        for waiting in self._waiting.values():
            for _, connection in waiting:
                connection.respond(410, b"")
        self._waiting.clear()

    def _offered(self, said: Offered) -> None:
        if said.name in self._mine:
            self._rows[said.name] = said.values
            for number, connection in self._waiting.pop(said.name, ()):
                self._answer(connection, said.name, number)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # It has stopped meanwhile.
            self._loop.call_soon_threadsafe(function, *arguments)

    def _warn(self, kind: str, text: str, *arguments: object) -> None:
        self._logged[kind] += 1
        if self._logged[kind] <= MAX_LOGGED:
            log.warning(text, *arguments)

    def _run(self, listening: socket.socket, serving: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(self._trouble)
        server = self._loop.run_until_complete(
            self._loop.create_server(lambda: Connection(self), sock=listening, backlog=ACCEPTED_AT_ONCE)
        )
        listening.listen(BACKLOG)  # asyncio has one number for both.
        self._loop.call_soon(serving.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._close_connections(server))
            self._loop.close()

    def _trouble(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As when no descriptor is left to accept a connection with: asyncio pauses for a second, but is not quiet."""
        self._warn("trouble", "rendezvous: %s: %r", context["message"], context.get("exception"))

    async def _close_connections(self, server: asyncio.Server) -> None:
        # asyncio accepts a connection in a task of its own, which a closed server would make fail and leak its socket.
        while accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*accepting, return_exceptions=True)
        server.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:  # noqa: ASYNC110 - they are gone in the loop's next round
            await asyncio.sleep(0)


def unpacked(value: str) -> bytes:
    """An address that another rank has offered; all zeros if that is not what it is."""
    try:
        address = zlib.decompressobj().decompress(base64.b64decode(value, validate=True), ADDRESS)
    except (ValueError, zlib.error):
        address = b""
    return address.ljust(ADDRESS, b"\0")
