"""Whoever reaches the launcher's port, with a certificate and without, and what it can take from the agents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from elastic_runtime.launcher import agents
from elastic_runtime.net import certificates
from elastic_runtime.net.certificates import LAUNCHER, agent_context
from elastic_runtime.protocol.wire import Heartbeat, Hello, Ready, StartRank, encode
from elastic_runtime.run.spec import WorkersSpec
from elastic_runtime.run.status import Status
from tests.unit.runtime.agent_bench import SOON, Desk, listening, spec
from tests.unit.runtime.launcher_bench import RUN, Place, Worker, launched

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


def hello(worker: str) -> bytes:
    return encode(Hello(worker, "node", 1, 1, "lo"))


@contextmanager
def descriptors(more: int) -> Iterator[None]:
    """This process may open so many more, and no others."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def idle(port: int, count: int) -> Iterator[None]:
    """Connections that say nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        yield


def client_hello(context: ssl.SSLContext) -> bytes:
    """What one who begins TLS sends first."""
    begun = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), begun, server_hostname=LAUNCHER).do_handshake()
    return begun.read()


def count_handshakes(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The sockets of those that the launcher does from now on."""
    done: list[socket.socket] = []
    handshake = agents._handshake

    async def counted(sock: socket.socket, context: ssl.SSLContext) -> Streams:
        done.append(sock)
        return await handshake(sock, context)

    monkeypatch.setattr(agents, "_handshake", counted)
    return done


async def crowd(stack: contextlib.AsyncExitStack, desk: Desk, words: bytes, count: int) -> list[socket.socket]:
    """So many connect and say that, and no more."""
    loop, sockets = asyncio.get_running_loop(), [stack.enter_context(socket.socket()) for _ in range(count)]
    for sock in sockets:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", desk.port))
        await loop.sock_sendall(sock, words)
    return sockets


async def dial(desk: Desk, tls: Path) -> Streams:
    return await asyncio.open_connection("127.0.0.1", desk.port, ssl=agent_context(tls), server_hostname=LAUNCHER)


@asynccontextmanager
async def joined(desk: Desk, tls: Path, worker: str = "worker-0") -> AsyncIterator[Streams]:
    """An agent that has been welcomed."""
    reader, writer = await dial(desk, tls)
    writer.write(hello(worker))
    try:
        async with asyncio.timeout(SOON):
            assert b"welcome" in await reader.readline()
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def disconnected(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(SOON):
        with contextlib.suppress(OSError, ssl.SSLError):
            return await reader.read(1) == b""
    return True


def test_1100_idle_connections_stop_neither_status_nor_newcomers(tls: Path) -> None:
    async def test(place: Place, worker: Worker, running: asyncio.Task[Status]) -> None:
        # The strangers and the launcher share this process' descriptors: 1,100 for them, and few for the launcher.
        with descriptors(1100 + 300), idle(place.port, 1100):
            await asyncio.sleep(0.1)
            before = len(place.published)
            async with asyncio.timeout(SOON):
                other = await Worker.dial(tls, place.port, "other")
            try:
                await place.until(lambda status: "other" in {each.name for each in status.workers})
            finally:
                other.writer.transport.abort()
            assert len(place.published) > before
            assert not running.done()

    launched(tls, test)


def test_without_descriptors_connections_wait_until_there_are_some(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with listening(tls, spec()) as desk:
            context, loop = agent_context(tls), asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.setblocking(False)
                with descriptors(0):
                    await loop.sock_connect(sock, ("127.0.0.1", desk.port))
                    async with asyncio.timeout(SOON):
                        while not caplog.records:  # noqa: ASYNC110 - a log tells nobody
                            await asyncio.sleep(0.01)
                _, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname=LAUNCHER)
                writer.write(hello("worker-0"))
                await desk.until(lambda: len(desk.arrivals) == 1)
                writer.transport.abort()
                await desk.until(lambda: len(desk.ends) == 1)

    asyncio.run(run())
    assert "no connection can be taken now" in caplog.records[0].getMessage()


@pytest.mark.parametrize("what", ["nothing", "half a handshake", "garbage", "drops"])
def test_one_that_does_not_come_to_a_hello_is_cut(tls: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "GREETING", 2.0 if what == "drops" else 0.4)
    handshake, handshakes = client_hello(agent_context(tls)), count_handshakes(monkeypatch)

    async def run() -> None:
        async with listening(tls, spec()) as desk:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            if what == "drops":
                reader, writer = await dial(desk, tls)
                with contextlib.suppress(OSError):
                    for byte in hello("worker-0").rstrip() * 1000:  # It never comes to the end of its line.
                        if writer.is_closing():
                            break
                        writer.write(bytes([byte]))
                        await asyncio.sleep(0.02)
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
                words = {"nothing": b"", "half a handshake": handshake[:100], "garbage": b"GET / HTTP/1.1\r\n\r\n" * 9}
                writer.write(words[what])
            assert await disconnected(reader)
            assert loop.time() - begin < 8.0
            writer.transport.abort()
            assert desk.arrivals == []
            assert len(handshakes) == (what == "drops")  # Nobody else has cost one.
            monkeypatch.setattr(agents, "GREETING", SOON)
            async with joined(desk, tls):
                pass
            await desk.until(lambda: len(desk.ends) == 1)

    asyncio.run(run())


@pytest.mark.parametrize("knowing", [False, True])
def test_a_crowd_that_begins_handshakes_costs_few_and_holds_up_no_agent(
    tls: Path, monkeypatch: pytest.MonkeyPatch, knowing: bool
) -> None:
    """Strangers, and those that repeat what they have heard of an agent."""
    monkeypatch.setattr(agents, "HANDSHAKES", 20.0)  # Any that waits is next: the agent, within 2 s.
    begun = client_hello(agent_context(tls) if knowing else ssl.create_default_context())
    handshakes = count_handshakes(monkeypatch)

    async def run() -> None:
        async with listening(tls, spec()) as desk, contextlib.AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            await crowd(stack, desk, begun, 60)
            async with joined(desk, tls):
                assert len(handshakes) <= 20 + 20 * (loop.time() - begin) + 1
            await desk.until(lambda: len(desk.ends) == 1)

    asyncio.run(run())


def test_an_agent_stands_in_no_line_of_strangers(tls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them come after it than there are seats and turns, while it is slow to begin."""
    monkeypatch.setattr(agents, "HANDSHAKES", 1.0)
    monkeypatch.setattr(agents, "SEATS", 4)
    strangers, agent = client_hello(ssl.create_default_context()), client_hello(agent_context(tls))

    async def run() -> None:
        async with listening(tls, spec()) as desk, contextlib.AsyncExitStack() as stack:
            handshakes = count_handshakes(monkeypatch)
            await crowd(stack, desk, strangers, 10)
            async with asyncio.timeout(SOON):
                while not handshakes:  # noqa: ASYNC110  # nothing tells of one
                    await asyncio.sleep(0.01)
            [slow] = await crowd(stack, desk, agent, 1)
            await crowd(stack, desk, strangers, 10)
            async with asyncio.timeout(SOON):
                answer = await asyncio.get_running_loop().sock_recv(slow, 5)
            assert answer[:1] == b"\x16", "the launcher's half of the handshake"

    asyncio.run(run())


@pytest.mark.parametrize("size", [0, 39, 16 * 1024 + 1, 65535])
def test_a_record_that_cannot_be_a_client_hello_is_not_waited_for(tls: Path, size: int) -> None:
    async def run() -> None:
        async with listening(tls, spec()) as desk:
            reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
            writer.write(bytes((22, 3, 1)) + size.to_bytes(2, "big"))
            begin = asyncio.get_running_loop().time()
            assert await disconnected(reader)
            assert asyncio.get_running_loop().time() - begin < agents.GREETING / 2
            writer.transport.abort()

    asyncio.run(run())


def test_a_first_line_is_short(tls: Path) -> None:
    async def run() -> None:
        async with listening(tls, spec()) as desk:
            reader, writer = await dial(desk, tls)
            writer.write(encode(Hello("w" * 5000, "node", 1, 1, "lo")))
            assert await disconnected(reader)
            writer.transport.abort()
            assert desk.arrivals == []

    asyncio.run(run())


class TestWithACertificate:
    def test_one_that_floods_takes_neither_the_loop_nor_memory(self, tls: Path) -> None:
        async def run() -> None:
            async with (
                listening(tls, spec(agent_silence=60.0)) as desk,
                joined(desk, tls, "flood") as (_, flood),
                joined(desk, tls, "quiet") as (_, quiet),
            ):
                loop = asyncio.get_running_loop()
                pauses, begin = [], loop.time()
                flood.write(encode(Heartbeat(0, 0)) * 600_000)
                while loop.time() < begin + 1.5:
                    before = loop.time()
                    await asyncio.sleep(0.001)
                    pauses.append(loop.time() - before)
                quiet.write(encode(Ready(warm=False)))
                await desk.until(lambda: bool(desk.of(Ready)))
                elapsed = loop.time() - begin
                assert len(desk.messages) < 2000 * (elapsed + 2)
                flood.write(encode(Heartbeat(0, 0)) * 20_000)
                assert flood.transport.get_write_buffer_size() > 1_000_000  # It has to wait.
                assert sorted(pauses)[-2] < 0.5, "one may be this process's own"

        asyncio.run(run())

    def test_one_whose_line_does_not_end_is_cut(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, spec()) as desk, joined(desk, tls) as (reader, writer):
                writer.write(b"[" * 4 * 1024 * 1024)
                await desk.until(lambda: desk.ends == ["worker-0"])
                assert await disconnected(reader)

        asyncio.run(run())

    def test_one_that_does_not_read_is_cut_before_it_fills_the_memory(
        self, tls: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agents, "BACKLOG", 1_000_000)

        async def run() -> None:
            async with listening(tls, spec()) as desk, joined(desk, tls) as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a transport that reads
                connection = desk.arrivals[0]
                for number in range(100):
                    connection.send(StartRank(f"worker-0.0.{number}~0", 0, {"X": "x" * 500_000}))
                    await asyncio.sleep(0)
                    assert connection.writer.transport.get_write_buffer_size() < 2_000_000
                await desk.until(lambda: desk.ends == ["worker-0"])

        asyncio.run(run())

    def test_no_more_come_in_than_the_run_can_have(self, tls: Path) -> None:
        async def run() -> None:
            async with contextlib.AsyncExitStack() as stack:
                desk = await stack.enter_async_context(listening(tls, spec()))
                for number in range(4):  # One worker, one that replaces it, and two to spare.
                    await stack.enter_async_context(joined(desk, tls, f"worker-{number}"))
                reader, writer = await dial(desk, tls)
                writer.write(hello("worker-4"))
                assert await disconnected(reader)
                writer.transport.abort()
                assert len(desk.arrivals) == 4

        assert RUN.workers == WorkersSpec()
        asyncio.run(run())

    def test_one_that_comes_again_and_again_does_not_fill_the_log(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, spec()) as desk:
                loop, begin = asyncio.get_running_loop(), asyncio.get_running_loop().time()
                for _ in range(2):
                    async with joined(desk, tls):
                        pass
                    await desk.until(lambda: len(desk.ends) == len(desk.arrivals))
                assert loop.time() - begin >= agents.AGAIN

        asyncio.run(run())
