"""Strangers at the rendezvous of a rank, which is on loopback: nothing changes, and nobody is held up."""

from __future__ import annotations

import asyncio.constants
import contextlib
import http.client
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.horovod import store as rendezvous
from elastic_runtime.engines.horovod.store import (
    ADDRESS,
    MAX_BODY,
    MAX_HEAD,
    MAX_LOGGED,
    TOKEN,
    LoopbackStore,
    parse_request,
)
from elastic_runtime.engines.torch.messages import Offered
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.http_head import parse_headers
from elastic_runtime.net.seats import Seats
from tests.paced import until
from tests.unit.runtime.linked_ranks import SOON, in_thread

VALUE = bytes(ADDRESS) + b"x" * ADDRESS
"""Of a rank with two others."""


class Place:
    """The rendezvous of rank 1 of three, and what it has offered the others."""

    def __init__(self) -> None:
        self.offers: list[tuple[str, int, tuple[str, ...]]] = []
        self.server = LoopbackStore(lambda *offer: self.offers.append(offer), "1,3,0,1,1,3")
        self.port = self.server.port
        self.header = {"Authorization": f"Bearer {self.server.environment[TOKEN]}"}

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer to the rank, or to anyone who shows these headers."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=SOON)) as connection:
            connection.request(method, path, body, self.header if headers is None else headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def give(self, scope: str) -> None:
        """The others of that scope have offered theirs."""
        self.server.offered(Offered(1, scope, 1, self.offers[-1][2]))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.server.stop()


REQUESTS = [
    ("PUT", "/global/1"),
    ("GET", "/global/0"),
    ("GET", "/rank_and_size/a:0"),
    ("DELETE", "/global/1"),
    ("DELETE", "/cross_0_process_set_hash_1234/1"),
    ("BREW", "/pot"),
]


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_a_stranger_changes_nothing_and_learns_nothing(place: Place, method: str, path: str) -> None:
    place.ask("PUT", "/global/1", VALUE)
    place.give("global")
    token, elsewhere = place.server.environment[TOKEN], Place()
    elsewhere.server.stop()
    for shown in ("", "a", ".", 64 * "0", elsewhere.server.environment[TOKEN], token[:-1], token + "0", "é.ü"):
        assert place.ask(method, path, b"evil", {"Authorization": f"Bearer {shown}"}) == (403, b""), shown
    assert place.ask(method, path, b"evil", {}) == (403, b"")
    assert len(place.offers) == 1
    assert place.ask("GET", "/global/2") == (200, bytes(ADDRESS) + VALUE[ADDRESS:])


def test_what_a_rank_reads_of_another_is_for_it_alone(place: Place) -> None:
    """The rest, by which it could connect in the place of others, does not even come here."""
    place.ask("PUT", "/global/1", b"a" * ADDRESS + b"c" * ADDRESS)
    place.give("global")
    assert place.ask("GET", "/global/0") == (200, b"a" * ADDRESS + bytes(ADDRESS))
    assert place.ask("GET", "/global/2") == (200, bytes(ADDRESS) + b"c" * ADDRESS)
    assert [place.ask("GET", f"/global/{other}")[0] for other in (1, 3)] == [404, 404]


def test_what_others_offer_is_no_more_than_an_address(place: Place) -> None:
    bomb = rendezvous.base64.b64encode(rendezvous.zlib.compress(bytes(1 << 24), 9)).decode()
    place.ask("PUT", "/global/1", VALUE)
    place.server.offered(Offered(1, "global", 1, (bomb, "no base64")))
    assert place.ask("GET", "/global/0") == (200, bytes(2 * ADDRESS))
    assert place.ask("GET", "/global/2") == (200, bytes(2 * ADDRESS))
    place.ask("PUT", "/cross_0/1", VALUE)
    place.server.offered(Offered(1, "cross_0", 1, ("too few",)))
    place.server.offered(Offered(1, "never asked for", 1, ()))
    assert place.ask("GET", "/cross_0/0") == (404, b"")


def request_of(place: Place, *lines: str, first: str = "PUT /global/1 HTTP/1.1") -> bytes:
    """As the rank would write it."""
    token = f"Authorization: {place.header['Authorization']}"
    return "\r\n".join([first, token, *lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: minus"],
        ["Content-Length: -1"],
        ["Content-Length: +1"],
        ["Content-Length: 1_0"],
        ["Content-Length: \xb2"],
        ["Content-Length:"],
        ["Content-Length: " + 5000 * "9"],
        ["Content-Length: " + 5000 * "0"],
        [f"Content-Length: {MAX_BODY + 1}"],
        ["Content-Length: 1", "content-length: 1"],
        ["Transfer-Encoding: chunked"],
        ["nonsense"],
        [": nonsense"],
        ["X: y", "X: y"],
    ],
)
def test_absurd_headers_are_refused(place: Place, lines: list[str]) -> None:
    assert answer(place, request_of(place, *lines)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "first",
    [
        "nonsense",
        "GET / HTTP/1.1",
        "GET /global HTTP/1.1",
        "GET /global/3/4 HTTP/1.1",
        "GET /glo\x1b[2Jbal/3 HTTP/1.1",
        "GET /global/" + 400 * "3" + " HTTP/1.1",
        "BREW /global/3 HTTP/1.1",
        "GET  /global/3 HTTP/1.1",
    ],
)
def test_other_requests_are_refused(place: Place, first: str) -> None:
    assert answer(place, request_of(place, first=first)).startswith(b"HTTP/1.1 400 ")


def test_a_head_without_end_is_refused(place: Place) -> None:
    assert answer(place, b"PUT /global/0 HTTP/1.1\r\nX:" + MAX_HEAD * b"y").startswith(b"HTTP/1.1 400 ")


def test_more_than_a_request_is_refused(place: Place) -> None:
    assert answer(place, request_of(place) + b"GET").startswith(b"HTTP/1.1 400 ")


def answer(place: Place, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", place.port), timeout=SOON) as connection:
        connection.sendall(request)
        return connection.recv(100)


PIECES = [
    b"GET ",
    b"PUT /a/b",
    b"/global/0",
    b" HTTP/1.1",
    b"\r\n",
    b":",
    b"Content-Length: ",
    b"9",
    b"-",
    b"\xb2",
    b"\0",
]


@given(st.binary(max_size=100) | st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_whatever_is_parsed_is_a_request_or_refused(head: bytes) -> None:
    try:
        request = parse_request(*parse_headers(head))
    except InvalidDocument:
        return
    assert 0 <= request.length <= MAX_BODY
    assert request.method in ("GET", "PUT", "DELETE")


def test_a_request_that_drips_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_connection(("127.0.0.1", place.port), timeout=SOON) as connection:
        connection.sendall(request_of(place))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    monkeypatch.setattr(rendezvous, "REQUEST_TIME", 0.1)
    for said in (b"", b"P", request_of(place, "Content-Length: 9") + b"val"):
        with socket.create_connection(("127.0.0.1", place.port), timeout=SOON) as connection:
            connection.sendall(said)
            assert disconnected(connection)


def disconnected(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_body_that_drips_takes_no_core(place: Place) -> None:
    """Each piece is looked at once: 256 KiB in 4,096 pieces cost about as much as 4,096 pieces do."""
    body = MAX_BODY * b"x"
    with socket.create_connection(("127.0.0.1", place.port), timeout=SOON) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before = time.process_time()
        connection.sendall(request_of(place, f"Content-Length: {len(body)}"))
        for start in range(0, len(body), 64):
            connection.sendall(body[start : start + 64])
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert time.process_time() - before < 1.0


def test_idle_connections_do_not_keep_a_rank_from_connecting(place: Place) -> None:
    """1,200, of which the server keeps fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    try:
        with ExitStack() as stack:
            for index in range(1200):
                idle = stack.enter_context(closing(socket.create_connection(("127.0.0.1", place.port), timeout=SOON)))
                if index % 3:
                    with contextlib.suppress(OSError):  # It has had to go already.
                        idle.sendall(b"PUT /global/0 HTTP/1.1\r\n"[: index % 24])
            for scope in ("global", "cross_0"):
                reading = in_thread(partial(place.ask, "GET", f"/{scope}/0"))
                assert place.ask("PUT", f"/{scope}/1", VALUE) == (200, b"")
                place.give(scope)
                assert reading.result(SOON) == (200, bytes(2 * ADDRESS))
            assert len(place.server._strangers) <= rendezvous.MAX_STRANGERS
            until(lambda: len(place.server._connections) <= rendezvous.MAX_STRANGERS + 1, "few are kept")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_of_too_many_strangers_the_busiest_address_loses(place: Place) -> None:
    place.server._strangers = Seats(3)
    with ExitStack() as stack:
        patient = stack.enter_context(closing(socket.create_connection(("127.0.0.1", place.port), timeout=SOON)))
        for _ in range(10):
            stack.enter_context(
                closing(socket.create_connection(("127.0.0.1", place.port), SOON, source_address=("127.0.0.2", 0)))
            )
        patient.sendall(request_of(place))
        assert patient.recv(100).startswith(b"HTTP/1.1 200 ")


def test_goes_on_when_descriptors_have_run_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as connection:
        # The lowest free descriptor is forbidden, and with it all.
        free = os.dup(connection.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            connection.connect(("127.0.0.1", place.port))
            connection.settimeout(SOON)
            connection.sendall(request_of(place))
            until(lambda: place.server._logged["trouble"] > 0, "it says so")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_says_what_is_wrong_a_few_times_and_no_secret(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for _ in range(3 * MAX_LOGGED):
            place.ask("PUT", "/global/0", b"evil", {})
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == MAX_LOGGED * ["refused a request from 127.0.0.1 to this rank's rendezvous: no token"]
    assert place.server.environment[TOKEN] not in caplog.text


def test_a_broken_world_is_told_of_at_once(place: Place) -> None:
    """Or Horovod would wait for the others for Gloo's 30 s."""
    place.ask("PUT", "/global/1", VALUE)
    reading: Callable[[], tuple[int, bytes]] = partial(place.ask, "GET", "/global/0")
    waiting = in_thread(reading)
    until(lambda: bool(place.server._waiting), "it waits")
    place.server.refuse()
    assert waiting.result(SOON)[0] == 410
    assert reading()[0] == 410
