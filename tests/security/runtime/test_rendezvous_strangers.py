"""Strangers, and ranks that speak for others, at the rendezvous: nothing changes, and nobody is held up."""

from __future__ import annotations

import asyncio.constants
import logging
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.horovod import rendezvous_server
from elastic_runtime.engines.horovod.rendezvous_server import (
    MAX_BODY,
    MAX_HEAD,
    MAX_LOGGED,
    MAX_OF_A_HOST,
    RendezvousServer,
    authorization,
    parse_request,
)
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.http_head import parse_headers
from elastic_runtime.net.seats import Seats
from tests.unit.runtime.driver_bench import SOON, bench, in_thread, wait_until
from tests.unit.runtime.rendezvous_bench import Place
from tests.unit.runtime.rendezvous_bench import adapted as adapted_place


@pytest.fixture
def place() -> Iterator[Place]:
    """A world of five; host ``a`` is rank 3 there, ``b`` is rank 1."""
    with adapted_place() as place:
        place.driver.ranks = {"a": 3, "b": 1}
        yield place


REQUESTS = [
    ("PUT", "/global/0"),
    ("PUT", "/global/3"),
    ("PUT", "/worker_addresses/a:0"),
    ("GET", "/global/3"),
    ("GET", "/rank_and_size/a:0"),
    ("GET", "/next_assignment/a:0"),
    ("GET", "/roll_call/a:0"),
    ("GET", "/hosts_updated/a:0"),
    ("DELETE", "/global/3"),
    ("DELETE", "/cross_0_process_set_hash_1234/3"),
    ("BREW", "/pot"),
]


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_a_stranger_changes_nothing(place: Place, method: str, path: str) -> None:
    place.ask("PUT", "/global/3", b"value")
    elsewhere = RendezvousServer("127.0.0.1").tokens.of("a")
    for shown in ("", "a", "a.", ".", "a." + 64 * "0", elsewhere, place.server.tokens.of("a")[:-1], "é.ü"):
        headers = {**authorization(shown)}
        assert place.ask(method, path, b"evil", headers=headers) == (403, b""), shown
    assert place.ask(method, path, b"evil", headers={}) == (403, b"")
    assert place.ask("GET", "/global/3") == (200, b"value")
    assert place.driver.asked == []
    assert place.joined == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, path) for method, path in REQUESTS[:-1] if (method, path) != ("GET", "/global/3")),
        ("PUT", "/global/rank_3"),
        ("PUT", "/global/01"),
        ("PUT", "/global/given-up"),
        ("PUT", "/local_a/0"),
        ("PUT", "/local_b/1"),
        ("PUT", "/cross_0/3"),
        ("PUT", "/cross_1/1"),
        ("PUT", "/anything/1"),
        ("PUT", "/global_process_set_hash_1234_process_set_hash_1/x"),
        ("PUT", "/global_process_set_hash_1234/3"),
        ("PUT", "/rank_and_size/b:0"),
    ],
)
def test_a_rank_speaks_for_itself_only(place: Place, method: str, path: str) -> None:
    place.ask("PUT", "/global/3", b"value")
    for key in ("3", "rank_3"):
        for scope in ("global", "cross_0"):
            place.ask("PUT", f"/{scope}_process_set_hash_1234/{key}", b"value")
    assert place.ask(method, path, b"evil", host="b")[0] == 403
    assert place.ask("GET", "/global/3") == (200, b"value")
    assert place.ask("GET", "/global_process_set_hash_1234/3") == (200, b"value")
    assert place.driver.asked == []
    assert place.joined == []


def test_a_rank_that_is_in_no_world_stores_nothing(place: Place) -> None:
    assert place.ask("PUT", "/global/0", b"evil", host="removed")[0] == 403
    assert place.ask("PUT", "/local_removed/0", b"evil", host="removed")[0] == 403


def test_a_stranger_at_the_barrier_does_not_count() -> None:
    """The next world forms when its ranks have come, and not before."""
    with bench(minimum=2) as ours:
        ours.begin("a", "b")
        ours.push("a", "b", "c")
        with socket.create_connection(("127.0.0.1", ours.port), timeout=SOON) as stranger:
            stranger.sendall(b"GET /rank_and_size/b:0 HTTP/1.1\r\n\r\n")
            assert stranger.recv(100).startswith(b"HTTP/1.1 403 ")
        first = ours.ready("a")
        assert ours.driver._worker_registry.count("READY") == 1
        assert ours.ready("b").result(SOON).size == 3
        assert first.result(SOON).size == 3


def request_of(place: Place, *lines: str, first: str = "PUT /global/3 HTTP/1.1") -> bytes:
    """As rank 3 would write it."""
    token = f"Authorization: {place.token('a')['Authorization']}"
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
    monkeypatch.setattr(rendezvous_server, "REQUEST_TIME", 0.1)
    for said in (b"", b"P", request_of(place), request_of(place, "Content-Length: 9") + b"val"):
        with socket.create_connection(("127.0.0.1", place.port), timeout=SOON) as connection:
            connection.sendall(said)
            if said == request_of(place):
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
            else:
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
    assert place.ask("GET", "/global/3") == (200, body)


def test_a_rank_fills_no_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_server, "MAX_KEYS", 10)
    monkeypatch.setattr(rendezvous_server, "MAX_BYTES", 1000)
    scope = "/global_process_set_hash_1"
    assert [place.ask("PUT", f"{scope}/{key}", b"")[0] for key in range(12)] == [200] * 10 + [403] * 2
    assert [place.ask("PUT", f"{scope}/0", size * b"x")[0] for size in (1000, 1001)] == [200, 403]
    assert place.ask("PUT", f"{scope}/1", b"x")[0] == 403
    assert place.ask("PUT", "/global/1", b"x", host="b")[0] == 200
    place.server.init([])
    assert place.ask("PUT", f"{scope}/1", b"x")[0] == 200


def test_a_rank_takes_no_more_connections_and_threads_than_it_needs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_server, "MAX_THREADS_OF_A_HOST", 2)
    place.driver.roll_call.begin(["a", "b"])
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", place.port), timeout=SOON)))
            for _ in range(MAX_OF_A_HOST)
        ]
        for connection in waiting:
            connection.sendall(request_of(place, first="GET /roll_call/a:0 HTTP/1.1"))
        for connection in waiting[2:]:
            assert connection.recv(100).startswith(b"HTTP/1.1 429 ")
        assert place.ask("GET", "/roll_call/b:0", host="b") == (200, b"go")
    wait_until(lambda: not place.server._of_host["a"])


def test_idle_connections_do_not_keep_a_world_from_forming(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,200, of which the server keeps fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    place.server._strangers = Seats(200)
    try:
        with ExitStack() as stack:
            for index in range(1200):
                idle = stack.enter_context(closing(socket.create_connection(("127.0.0.1", place.port), timeout=SOON)))
                if index % 3:
                    idle.sendall(b"PUT /global/0 HTTP/1.1\r\n"[: index % 24])
            for scope in ("global", "cross_0"):
                reading = in_thread(partial(place.ask, "GET", f"/{scope}/3", host="b"))
                assert place.ask("PUT", f"/{scope}/3", b"address") == (200, b"")
                assert reading.result(SOON) == (200, b"address")
            assert len(place.server._strangers) <= 200
            wait_until(lambda: len(place.server._connections) <= 201)
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
            wait_until(lambda: place.server._logged["trouble"] > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_says_what_is_wrong_a_few_times_and_no_secret(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for _ in range(3 * MAX_LOGGED):
            place.ask("PUT", "/global/0", b"evil", headers={})
            place.ask("PUT", "/global/0", b"evil")
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2 * MAX_LOGGED
    assert "refused a request from 127.0.0.1 to the rendezvous that shows no token of this run" in said[0]
    assert place.server.tokens.of("a").rpartition(".")[2] not in caplog.text
