"""The launcher's end of its agents: who comes in, who does not, and how each leaves."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from elastic_runtime.launcher import agents
from elastic_runtime.net import certificates
from elastic_runtime.net.certificates import LAUNCHER, agent_context, launcher_context
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.protocol.wire import Heartbeat, Hello, Ready, Release, Welcome, decode, encode
from tests.unit.runtime.agent_bench import SOON, Desk, handshakes, listening, spec

HELLO = encode(Hello("worker-0", "node", 1, 1, "lo"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificates of two runs."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("this", "other"):
        certificates.create(folder / name, ["127.0.0.1"])
    return folder / "this", folder / "other"


@pytest.fixture
def tls(runs: tuple[Path, Path]) -> Path:
    return runs[0]


class Client:
    """A peer that says whatever it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, *lines: bytes) -> None:
        self.writer.write(b"".join(lines))

    async def hear(self) -> bytes:
        """The next line; nothing when the server has hung up, however."""
        try:
            async with asyncio.timeout(SOON):
                return await self.reader.readline()
        except (OSError, ssl.SSLError):
            return b""


@asynccontextmanager
async def dialled(desk: Desk, context: ssl.SSLContext) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port, ssl=context, server_hostname=LAUNCHER)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


class TestStrangers:
    def test_one_without_a_certificate_does_not_come_in(self, tls: Path) -> None:
        context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
        assert turned_away(tls, context) == []

    def test_one_of_another_run_does_not_come_in(self, runs: tuple[Path, Path]) -> None:
        this, other = runs
        context = agent_context(other)
        context.load_verify_locations(str(this / "ca.crt"))  # it does not mind whom it talks to
        assert turned_away(this, context) == []

    def test_one_with_the_launchers_own_certificate_is_no_agent(self, tls: Path) -> None:
        context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
        context.load_cert_chain(tls / "launcher.crt", tls / "launcher.key")
        assert turned_away(tls, context) == []

    def test_an_agent_does_not_speak_to_another_runs_launcher(self, runs: tuple[Path, Path]) -> None:
        this, other = runs

        async def run() -> None:
            async with listening(this, spec()) as desk:
                with pytest.raises(ssl.SSLCertVerificationError):
                    async with dialled(desk, agent_context(other)):
                        pass

        asyncio.run(run())

    def test_an_agent_does_not_take_another_agent_for_the_launcher(self, tls: Path) -> None:
        fake = launcher_context(tls)
        fake.load_cert_chain(tls / "agent.crt", tls / "agent.key")

        async def run() -> None:
            server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=fake)
            desk = Desk(port=server.sockets[0].getsockname()[1])
            async with server:
                with pytest.raises(ssl.SSLCertVerificationError):
                    async with dialled(desk, agent_context(tls)):
                        pass
            await handshakes()

        asyncio.run(run())

    @pytest.mark.parametrize(
        "line",
        [
            b"GET / HTTP/1.1\r\n",
            b"[]\n",
            b"{}\n",
            b'{"type":"hello"}\n',
            b'{"type":"shell","command":"id"}\n',
            b'{"type":"ready","warm":true}\n',
            b"\xff\xfe\n",
        ],
    )
    def test_one_that_says_anything_but_hello_is_hung_up_on(self, tls: Path, line: bytes) -> None:
        async def run() -> None:
            async with listening(tls, spec()) as desk, dialled(desk, agent_context(tls)) as client:
                client.say(line, HELLO)
                assert await client.hear() == b""
                assert desk.arrivals == []

        asyncio.run(run())


class TestProof:
    def test_is_asked_for_before_anybody_hears_of_the_agent(self, tls: Path, caplog: pytest.LogCaptureFixture) -> None:
        shown: list[str] = []

        async def prove(hello: Hello) -> str | None:
            shown.append(hello.token)
            return None if hello.token == "right" else "it is another one\nlauncher: all is well"

        async def run() -> None:
            async with listening(tls, spec(), prove=prove) as desk:
                for token in ("wrong", "wrong", "right"):
                    async with dialled(desk, agent_context(tls)) as client:
                        client.say(encode(Hello("worker-0", "node", 1, 1, "lo", token=token)))
                        heard = await client.hear()
                        assert bool(heard) is (token == "right")
                        assert len(desk.arrivals) == (token == "right")
                assert [each.hello.token for each in desk.arrivals] == [""]

        asyncio.run(run())
        assert shown == ["wrong", "wrong", "right"]
        [told] = [each for each in caplog.messages if "worker-0" in each]
        assert told == "refusing an agent that calls itself worker-0: it is another one\\x0alauncher: all is well"

    def test_lets_one_of_two_in_that_prove_the_same_at_once(self, tls: Path) -> None:
        both = asyncio.Event()
        asked: list[str] = []

        async def prove(hello: Hello) -> str | None:
            asked.append(hello.worker)
            if len(asked) == 2:
                both.set()
            await both.wait()
            return None

        async def run() -> None:
            async with (
                listening(tls, spec(), prove=prove) as desk,
                dialled(desk, agent_context(tls)) as one,
                dialled(desk, agent_context(tls)) as other,
            ):
                for each in (one, other):
                    each.say(HELLO)
                assert sorted([bool(await each.hear()) for each in (one, other)]) == [False, True]
                assert len(desk.arrivals) == 1

        asyncio.run(run())


def turned_away(tls: Path, context: ssl.SSLContext) -> list[object]:
    """Dial and say hello, and be hung up on. Returns the arrivals."""

    async def run() -> list[object]:
        async with listening(tls, spec()) as desk:
            try:
                async with dialled(desk, context) as client:
                    client.say(HELLO)
                    assert await client.hear() == b""
            except (OSError, ssl.SSLError):
                pass  # TLS 1.3: the server's no can come in the handshake or with the first bytes
            return list(desk.arrivals)

    return asyncio.run(run())


class TestAgent:
    def test_is_welcomed_with_the_run_and_heard(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, spec("python", "train.py")) as desk:
                async with dialled(desk, agent_context(tls)) as client:
                    client.say(HELLO, encode(Ready(True)), encode(Heartbeat(1.5, 7)))
                    assert decode(decode_line(await client.hear())) == Welcome(spec("python", "train.py"), "worker-0")
                    await desk.until(lambda: len(desk.messages) == 2)
                    assert [each.hello.worker for each in desk.arrivals] == ["worker-0"]
                    assert desk.messages == [Ready(True), Heartbeat(1.5, 7)]
                    desk.arrivals[0].send(Release("enough"))
                    assert decode(decode_line(await client.hear())) == Release("enough")
                    assert desk.ends == []
                await desk.until(lambda: desk.ends == ["worker-0"])
                desk.arrivals[0].send(Release("too late"))  # dropped

        asyncio.run(run())

    def test_hears_small_messages_at_once_one_after_another(self, tls: Path) -> None:
        """The system would keep the second back until the first is acknowledged, for 40 ms."""

        async def run() -> None:
            async with listening(tls, spec()) as desk, dialled(desk, agent_context(tls)) as client:
                client.say(HELLO)
                await client.hear()
                [arrival] = desk.arrivals
                sock = arrival.writer.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

        asyncio.run(run())

    def test_a_second_one_with_the_same_name_is_turned_away(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, spec()) as desk, dialled(desk, agent_context(tls)) as first:
                first.say(HELLO)
                await first.hear()
                async with dialled(desk, agent_context(tls)) as second:
                    second.say(HELLO)
                    assert await second.hear() == b""
                first.say(encode(Ready(False)))
                await desk.until(lambda: desk.messages == [Ready(False)])
                assert len(desk.arrivals) == 1
                assert desk.ends == []

        asyncio.run(run())

    def test_one_that_comes_again_has_another_name(self, tls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agents, "AGAIN", 0.0)
        names = ["worker-0", "worker-0.r2", "worker-0.r3"]

        async def run() -> None:
            async with listening(tls, spec(), used=["worker-0.r1", "worker-1"]) as desk:
                for count, name in enumerate(names, start=1):
                    async with dialled(desk, agent_context(tls)) as client:
                        client.say(HELLO)
                        assert decode(decode_line(await client.hear())) == Welcome(spec(), name)
                    await desk.until(lambda count=count: len(desk.ends) == count)
                assert [each.hello.worker for each in desk.arrivals] == desk.ends == names

        asyncio.run(run())
        assert {WorkerName.parse(name).pod for name in names} == {"worker-0"}

    @pytest.mark.parametrize("rest", [b"x" * 5000, b"x" * 5000 + b"\n", b"nonsense\n", b'{"type":"ready"}\n'])
    def test_one_that_talks_too_long_or_nonsense_is_gone(
        self, tls: Path, rest: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agents, "MESSAGE", 2000)

        async def run() -> None:
            async with listening(tls, spec()) as desk, dialled(desk, agent_context(tls)) as client:
                client.say(HELLO)
                await client.hear()
                client.say(rest)
                await desk.until(lambda: desk.ends == ["worker-0"])
                assert await client.hear() == b""

        asyncio.run(run())

    def test_one_that_is_silent_is_lost(self, tls: Path) -> None:
        async def run() -> None:
            run_spec = spec(agent_silence=0.15)
            async with listening(tls, run_spec) as desk, dialled(desk, agent_context(tls)) as client:
                client.say(HELLO)
                await client.hear()
                begin = asyncio.get_running_loop().time()
                for _ in range(4):
                    await asyncio.sleep(0.05)  # its heart beats
                    client.say(encode(Heartbeat(0, 0)))
                await desk.until(lambda: desk.ends == ["worker-0"])
                assert asyncio.get_running_loop().time() - begin >= 0.2
                assert await client.hear() == b""
                assert [each.given_up for each in desk.arrivals] == ["its agent has been silent for 0 s"]

        asyncio.run(run())

    def test_one_is_not_silent_while_the_launcher_itself_was_stopped(
        self, tls: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agents, "STOOD_STILL", 0.2)

        async def run() -> None:
            async with listening(tls, spec(agent_silence=0.5)) as desk, dialled(desk, agent_context(tls)) as client:
                client.say(HELLO)
                await client.hear()
                time.sleep(1.0)  # noqa: ASYNC251  # as SIGSTOP has it
                await asyncio.sleep(0.2)
                assert desk.ends == []
                await desk.until(lambda: desk.ends == ["worker-0"])

        asyncio.run(run())

    def test_is_hung_up_on_when_the_server_closes(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, spec()) as desk:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", desk.port, ssl=agent_context(tls), server_hostname=LAUNCHER
                )
                writer.write(HELLO)
                await reader.readline()
            assert desk.ends == ["worker-0"]
            with pytest.raises(OSError, match=r".*"):
                await asyncio.open_connection("127.0.0.1", desk.port)
            writer.transport.abort()

        asyncio.run(run())
