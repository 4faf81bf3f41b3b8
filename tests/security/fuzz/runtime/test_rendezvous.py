"""What comes to the rendezvous: one answer or none, whatever it is and in whatever pieces it comes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.horovod.store import MAX_BODY, Connection, Request, parse_request, unpacked
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.http_head import parse_headers
from tests.security.fuzz.inputs import spoiled, thorough

pytestmark = pytest.mark.timeout(600)
TOKEN = "Bearer 0123456789abcdef"
HEADERS = f"Authorization: {TOKEN}\r\n"
REQUESTS = [
    f"GET /global/0 HTTP/1.1\r\nHost: a\r\n{HEADERS}\r\n".encode(),
    f"PUT /local_worker-0.0.1/0 HTTP/1.1\r\n{HEADERS}Content-Length: 3\r\n\r\nabc".encode(),
    f"DELETE /cross_0_process_set_hash_1/0 HTTP/1.0\r\n{HEADERS}\r\n".encode(),
    f"GET /rank_and_size/worker-0.0.1:0 HTTP/1.1\r\n{HEADERS}Content-Length: {'9' * 5000}\r\n\r\n".encode(),
]
received = spoiled(REQUESTS) | st.binary(max_size=300) | st.sampled_from([b"x" * 9000, b"\r\n" * 5000, REQUESTS[1] * 2])


class FakeServer:
    """Knows who asks as the real one does, and answers everything."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def arrived(self, connection: Connection) -> None:
        pass

    def left(self, connection: Connection) -> None:
        pass

    def admit(self, connection: Connection, authorization: str) -> int:
        return 200 if authorization == TOKEN else 403

    def serve(self, connection: Connection, request: Request, body: bytes) -> None:
        self.bodies.append(body)
        connection.respond(200, b"")


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.answers: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@thorough
@given(received, st.lists(st.integers(0, 400), max_size=4))
def test_a_connection_gets_one_answer_or_none(loop: asyncio.Runner, data: bytes, cuts: list[int]) -> None:
    async def talk() -> tuple[FakeServer, FakeTransport]:
        server, transport = FakeServer(), FakeTransport()
        connection = Connection(server)
        connection.connection_made(transport)
        places = [0, *sorted(cuts), len(data)]
        for start, end in itertools.pairwise(places):
            connection.data_received(data[start:end])
        connection.connection_lost(None)
        return server, transport

    server, transport = loop.run(talk())
    assert len(transport.answers) <= 1
    assert len(server.bodies) <= 1
    assert all(len(body) <= MAX_BODY for body in server.bodies)


@thorough
@given(spoiled([each.partition(b"\r\n\r\n")[0] for each in REQUESTS]) | st.binary(max_size=300))
def test_a_request_is_a_rank_s_or_refused(head: bytes) -> None:
    with contextlib.suppress(InvalidDocument):
        request = parse_request(*parse_headers(head))
        assert 0 <= request.length <= MAX_BODY
        assert "/" not in request.scope + request.key


@thorough
@given(st.text() | spoiled([base64.b64encode(zlib.compress(bytes(168)))]).map(lambda data: data.decode("latin-1")))
def test_whatever_another_rank_offers_is_read_as_an_address(text: str) -> None:
    assert len(unpacked(text)) == 168
