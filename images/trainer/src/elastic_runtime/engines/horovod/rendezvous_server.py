"""A rendezvous server that speaks what Horovod's ranks expect, on one event loop instead of a thread per request.

A reset of *n* ranks makes about 12 n² requests, each on a connection of its own: six rendezvous, in each of which every
rank stores its addresses, waits for everybody's, reads them, and says that it is done (horovod/common/gloo/
gloo_context.cc, http_store.cc). Upstream answers each in a new thread, 404 while a key is missing, and is asked again
10 ms later; this one answers when the key is there.

The protocol, as far as ranks use it::

    PUT    /SCOPE/KEY     store                  GET /hosts_updated/HOST:SLOT   waits until the wanted world is another
    GET    /SCOPE/KEY     read; 404: ask again   GET /rank_and_size/HOST:SLOT   next world; waits at a barrier
    DELETE /SCOPE/RANK    this rank is done there

Every request carries the token of the rank that asks in ``Authorization``, or the answer is 403. A rank speaks for
itself only. Of connections that have not shown a token, there are at most :func:`most_strangers` at a time, and
each for at most :data:`REQUEST_TIME`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import re
import resource
import secrets
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.http_head import parse_headers
from elastic_runtime.net.seats import Seats

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
    429: "Too Many Requests",
}
_END = b"\r\n\r\n"
_FIRST = re.compile(r"(GET|PUT|DELETE) /([A-Za-z0-9_.-]{1,320})/([A-Za-z0-9_.:-]{1,320}) HTTP/1\.[01]", re.ASCII)
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
        """Know who it is, set :attr:`Connection.host`, and return 200; any other status is the answer."""

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
        self.host = ""
        """Who asks: the host, in Horovod's sense, that its token names; empty until it is known."""

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


# Who asks the rendezvous: each rank has a token of its own, which names its host and proves it.
#
# A rank finds its token in the environment variable :data:`TOKEN`; the amended Horovod (``images/trainer/patches``)
# and :mod:`~elastic_runtime.engines.horovod.rank` send it with every request, as ``Authorization: Bearer
# …``. The environment is handed over by the agent, over mutual TLS and a pipe. It is a secret: it belongs into no log.


class Tokens:
    """Makes the tokens of one rendezvous server, and knows them again; those of another one are worth nothing here."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, host: str) -> str:
        """The token of this host, in Horovod's sense: the id of a rank."""
        return f"{host}.{hmac.new(self._secret, host.encode(), hashlib.sha256).hexdigest()}"

    def host(self, authorization: str) -> str | None:
        """Whose token this value of the header ``Authorization`` carries; None: nobody's."""
        token = authorization.removeprefix(_SCHEME)
        host = token.rpartition(".")[0]
        return host if hmac.compare_digest(self.of(host).encode(), token.encode()) else None


def authorization(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"{_SCHEME}{token}"}


log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before those are read that were accepted before."""
MAX_STRANGERS = 1024
"""Upper limit of :func:`most_strangers`."""
MAX_OF_A_HOST = 32
"""Connections of one rank at a time. It makes one after the other, in four threads at most."""
MAX_THREADS_OF_A_HOST = 8
"""Threads of one rank that may wait in the driver: it asks once at a time, and is started four times at most."""
MAX_LOGGED = 3
"""Log lines for each kind of refusal in a server's life."""
HOSTS_UPDATED = "hosts_updated"
"""Scope: a rank asks here all the time, and is answered by :meth:`RendezvousServer.tell`."""
NEXT_ASSIGNMENT = "next_assignment"
"""Scope: as ``rank_and_size``, but the next ``rank_and_size`` of the same rank repeats the answer. A rank asks here
before its C++ side does, which would abort on hearing that it is out; each ``rank_and_size`` counts at the barrier."""
GLOBAL = "global"
"""Scope in which the ranks of a world exchange their addresses: Gloo's part of ``hvd.init()`` begins with it."""
ROLL_CALL = "roll_call"
"""Scope: a rank that has been assigned asks here before each ``hvd.init()``; see :class:`~.driver.RollCall`."""
HOSTS_UPDATED_TIME = 20.0
"""Seconds until such an answer is 404: ask again. Who has vanished meanwhile is noticed then."""
LONG_POLL = 2.0
"""Seconds that a GET waits for its key before it is answered 404."""
MAX_KEYS = 256
"""Keys of one rank at a time. Horovod needs two in each of six scopes, and as many for each process set."""
MAX_BYTES = 4 * 1024 * 1024
"""Bytes of one rank's values at a time."""
Respond = Callable[[int, bytes], None]
"""Answers one request: status and body. May be called from the event loop's thread only."""


def most_strangers() -> int:
    """Connections, at a time, that have not shown a token: a quarter of what this process may open, or fewer."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_STRANGERS if limit == resource.RLIM_INFINITY else max(64, min(MAX_STRANGERS, limit // 4))


class Handler:
    """Ranks and worlds, for the server. Methods raise InvalidDocument for a bad request.

    ``host`` is who asks, for certain. Only :meth:`get` returns what may block.
    """

    def get(self, scope: str, key: str, host: str) -> Callable[[], bytes] | None:
        """A function that finds the value and may block, run in a thread of its own; None: it is an ordinary key."""
        raise NotImplementedError

    def check(self, scope: str, key: str, host: str) -> None:
        """Raises InvalidDocument where that rank may not store, and not be done, in the present world."""
        raise NotImplementedError

    def stored(self, scope: str, host: str) -> None:
        """A rank has stored something in that scope."""
        raise NotImplementedError

    def finished(self, scope: str, host: str) -> None:
        """A rank is done in that scope."""
        raise NotImplementedError


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
        self.tokens = Tokens()
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._store = Store()
        self._handler: Handler
        self._connections: set[Connection] = set()
        self._of_host: Counter[str] = Counter()
        """How many of them are a rank's."""
        self._strangers: Seats[Connection] = Seats(most_strangers())
        """The others."""
        self._updates: dict[str, Connection] = {}
        """Who asks for :data:`HOSTS_UPDATED`."""
        self._threads: Counter[str] = Counter()
        self._logged: Counter[str] = Counter()

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
        """Refuse requests until the next world begins. Horovod's C++ side then fails within two seconds."""
        self._call(self._store.refuse)

    def tell(self, host: str, value: bytes) -> None:
        """Answer that rank, if it asks for :data:`HOSTS_UPDATED` just now. For any thread."""
        self._call(self._answer_updates, host, 200, value)

    def stop(self) -> None:
        """Hang up and free the port."""
        self._loop.call_soon_threadsafe(self._loop.stop)
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
        if host := connection.host:
            self._of_host[host] -= 1
            if self._updates.get(host) is connection:
                del self._updates[host]

    def admit(self, connection: Connection, authorization: str) -> int:
        """Check the token, and return the HTTP status: 200, 403 or 429."""
        host = self.tokens.host(authorization)
        if host is None:
            self._warn(
                "no token",
                "refused a request from %s to the rendezvous that shows no token of this run. If it is a rank, its "
                "image was built with another Horovod: build it with images/trainer/build-horovod.sh",
                connection.peer,
            )
            return 403
        self._strangers.leave(connection.peer, connection)
        if self._of_host[host] >= MAX_OF_A_HOST:
            return 429
        connection.host = host
        self._of_host[host] += 1
        return 200

    def serve(self, connection: Connection, request: Request, body: bytes) -> None:
        """Answer one request."""
        host, scope, key = connection.host, request.scope, request.key
        try:
            if request.method == "GET":
                self._get(connection, scope, key)
                return
            self._handler.check(scope, key, host)
            if request.method == "PUT":
                self._store.put(scope, key, body, host)
                self._handler.stored(scope, host)
            else:
                self._store.finish(scope, key, host)
                self._handler.finished(scope, host)
            connection.respond(200, b"")
        except InvalidDocument as error:
            self._warn("not its own", "refused %s /%s/%s of %s: %s", request.method, scope, key, host, error)
            connection.respond(403, b"")

    def _get(self, connection: Connection, scope: str, key: str) -> None:
        host = connection.host
        find = self._handler.get(scope, key, host)
        if scope == HOSTS_UPDATED:
            self._answer_updates(host, 429, b"")  # who asks twice at once
            self._updates[host] = connection
            self._loop.call_later(HOSTS_UPDATED_TIME, self._answer_updates, host, 404, b"", connection)
        elif find is None:
            self._store.get(scope, key, connection.respond, self._loop.call_later)
        elif self._threads[host] >= MAX_THREADS_OF_A_HOST:
            connection.respond(429, b"")
        else:
            self._threads[host] += 1
            threading.Thread(target=self._find, args=(find, connection), name=f"{scope}-{key}", daemon=True).start()

    def _answer_updates(self, host: str, status: int, value: bytes, asked: Connection | None = None) -> None:
        connection = self._updates.get(host)
        if connection and asked in (None, connection):
            del self._updates[host]
            connection.respond(status, value)

    def _find(self, find: Callable[[], bytes], connection: Connection) -> None:
        try:
            status, value = 200, find()
        except RuntimeError as error:  # Horovod's, for a rank that was declared dead while it waited
            log.debug("no answer for a rank: %s", error)
            status, value = 404, b""
        self._call(self._found, connection, status, value)

    def _found(self, connection: Connection, status: int, value: bytes) -> None:
        self._threads[connection.host] -= 1
        connection.respond(status, value)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
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
            self._loop.run_until_complete(self._close_connection(server))
            self._loop.close()

    def _trouble(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As when no descriptor is left to accept a connection with: asyncio pauses for a second, but is not quiet."""
        self._warn("trouble", "rendezvous: %s: %r", context["message"], context.get("exception"))

    async def _close_connection(self, server: asyncio.Server) -> None:
        # asyncio accepts a connection in a task of its own, which a closed server would make fail and leak its socket.
        while accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*accepting, return_exceptions=True)
        server.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:  # noqa: ASYNC110 - they are gone in the loop's next round
            await asyncio.sleep(0)


# Keys and values of the world that forms, and who waits for them.


@dataclass(slots=True)
class _Scope:
    values: dict[str, tuple[str, bytes]]
    """Owner and value by key."""
    finished: set[str]


class Store:
    """Keys and values by scope, each with the rank that it belongs to. Confined to the event loop."""

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}
        self._waiting: dict[tuple[str, str], list[Respond]] = defaultdict(list)
        self._used: dict[str, tuple[int, int]] = {}
        """Keys and bytes of each rank."""
        self._sizes: dict[str, int] = {}
        self._refused = False

    def begin(self, sizes: dict[str, int]) -> None:
        """A new world: forget all; so many ranks will be done in each of these scopes."""
        self._scopes.clear()
        self._used.clear()
        self._sizes = sizes
        self._refused = False

    def refuse(self) -> None:
        """The present world will never be complete: whoever asks, or waits, for a key is told so."""
        self._refused = True
        for waiting in list(self._waiting.values()):
            while waiting:
                waiting.pop()(410, b"")
        self._waiting.clear()

    def put(self, scope: str, key: str, value: bytes, owner: str) -> None:
        """Store, and answer who waits for it.

        Raises:
            InvalidDocument: the key is another rank's, or this one has stored more than any needs.
        """
        values = self._scopes.setdefault(scope, _Scope({}, set())).values
        if values.get(key, (owner, b""))[0] != owner:
            raise InvalidDocument("the key belongs to another rank")
        keys, size = self._used.get(owner, (0, 0))
        keys, size = keys + (key not in values), size + len(value) - len(values.get(key, (owner, b""))[1])
        if keys > MAX_KEYS or size > MAX_BYTES:
            raise InvalidDocument("the rank has stored too much")
        self._used[owner] = keys, size
        values[key] = (owner, value)
        for respond in self._waiting.pop((scope, key), ()):
            respond(200, value)

    def get(self, scope: str, key: str, respond: Respond, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Answer now, or when it is there, or with 404 after :data:`LONG_POLL`."""
        if self._refused:
            respond(410, b"")
            return
        kept = self._scopes.get(scope)
        found = kept and kept.values.get(key)
        if found:
            respond(200, found[1])
            return
        self._waiting[scope, key].append(respond)

        def give_up() -> None:
            waiting = self._waiting.get((scope, key), [])
            if respond in waiting:
                waiting.remove(respond)
                respond(404, b"")
            if not waiting:
                self._waiting.pop((scope, key), None)

        later(LONG_POLL, give_up)

    def finish(self, scope: str, key: str, owner: str) -> None:
        """That rank is done there; when all are, the scope is emptied. In a scope of no known size, its keys are.

        Raises:
            InvalidDocument: the key is another rank's.
        """
        kept = self._scopes.setdefault(scope, _Scope({}, set()))
        if kept.values.get(key, (owner, b""))[0] != owner:
            raise InvalidDocument("the key belongs to another rank")
        size = self._sizes.get(scope)
        kept.finished.add(owner)  # And not the key: it has two names for itself.
        whole = len(kept.finished) == size
        if whole or size is None:
            for name in [name for name, (by, _) in kept.values.items() if whole or by == owner]:
                by, value = kept.values.pop(name)
                keys, used = self._used[by]
                self._used[by] = keys - 1, used - len(value)
        if not kept.values and (whole or size is None):
            del self._scopes[scope]
