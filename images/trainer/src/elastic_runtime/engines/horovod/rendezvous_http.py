"""One request and its answer at the rendezvous: what is read of it, how much, for how long, and from whom.

Who asks is known before anything else is looked at: ``Authorization`` names a rank, or the answer is 403.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.http_head import parse_headers

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
# and :mod:`~elastic_runtime.engines.horovod.rendezvous_client` send it with every request, as ``Authorization: Bearer
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
