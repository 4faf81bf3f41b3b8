"""A small HTTP proxy in front of a server, which does to requests what a test says."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PROXY_TIMEOUT = 60.0
"""Seconds after which a held request goes on, so that a failing test ends."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for."""

    method: str
    path: str
    """With the query."""
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer as S3 does when it refuses, without asking the server."""

    status: int
    code: str
    message: str = "said the test"


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Have the server do it, and end the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Leave a header away."""

    header: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until the test says so, before the server is asked."""

    until: threading.Event


@dataclass(frozen=True, slots=True)
class Send:
    """Answer with this status, these headers and whatever this writes, without asking the server."""

    headers: dict[str, str]
    body: Callable[[Callable[[bytes], object]], object]
    status: int = 200


Fault = Refuse | LoseAnswer | Strip | Hold | Send | None


@dataclass
class FaultyProxy:
    """The proxy's side of the test.

    Everything may be read and set while it works.
    """

    url: str
    fault: Callable[[Request], Fault] = lambda request: None
    """What to do to a request; called for each, in several threads."""
    seen: list[Request] = field(default_factory=list)
    """All requests, in order."""

    def count(self, method: str, text: str = "") -> int:
        """Requests of this method with this text in their path."""
        return sum(request.method == method and text in request.path for request in self.seen)


def matching(fault: Fault, method: str = "", text: str = "", times: int | None = None) -> Callable[[Request], Fault]:
    """This fault for the first so many requests with this method and this text in their path."""
    left = [10**9 if times is None else times]

    def decide(request: Request) -> Fault:
        if method not in ("", request.method) or text not in request.path or not left[0]:
            return None
        left[0] -= 1
        return fault

    return decide


@contextmanager
def faulty_proxy(server_url: str) -> Iterator[FaultyProxy]:
    """A proxy in front of ``http://host:port``."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.target = urlsplit(server_url).netloc
    server.proxy = FaultyProxy(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.proxy
    finally:
        server.shutdown()
        thread.join()
        server.close_connection()
        server.server_close()


class _Server(ThreadingHTTPServer):
    target: str
    proxy: FaultyProxy
    daemon_threads = False  # server_close() waits for them

    def __init__(self, *args: Any) -> None:
        self._connections: list[socket.socket] = []
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def close_connection(self) -> None:
        """Clients keep their connections, and threads wait for the next request on them."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has given up is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = PROXY_TIMEOUT
    disable_nagle_algorithm = True

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, dict(self.headers))
        proxy = self.server.proxy
        proxy.seen.append(request)
        fault = proxy.fault(request)
        if isinstance(fault, Refuse):
            message = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>".encode()
            self._answer(
                fault.status, [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else message
            )
            return
        if isinstance(fault, Send):
            self.close_connection = True
            self.send_response_only(fault.status)
            for name, value in fault.headers.items():
                self.send_header(name, value)
            self.end_headers()
            fault.body(self.wfile.write)
            return
        if isinstance(fault, Hold):
            fault.until.wait(PROXY_TIMEOUT)
        headers = dict(self.headers)
        headers.pop("Expect", None)  # the body is here already
        if isinstance(fault, Strip):
            headers = {name: value for name, value in headers.items() if name.lower() != fault.header.lower()}
        connection = http.client.HTTPConnection(self.server.target, timeout=PROXY_TIMEOUT)
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if isinstance(fault, LoseAnswer):
            self.close_connection = True
            return
        self._answer(answer.status, answer.getheaders(), content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815  # names of http.server

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *what: Any) -> None:
        """Not in a test's output."""
