"""An agent that outlives its launcher, as in a pod."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from elastic_runtime.agent import agent as module
from elastic_runtime.agent.__main__ import parse_arguments
from elastic_runtime.agent.agent import Agent, AgentSettings
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json, write_atomically
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.net import certificates
from elastic_runtime.net.certificates import launcher_context
from elastic_runtime.protocol.plausible import TOKEN
from elastic_runtime.protocol.wire import Hello, Output, RankExited, Ready, Release, StartRank
from elastic_runtime.retry import RetryPolicy
from elastic_runtime.run.rundir import ReclaimNotice
from tests.paced import has_ended
from tests.unit.runtime.agent_bench import SOON, Desk, handshakes, listening, spec

SLEEPER = spec("sh", "-c", 'echo "$ELASTIC_RUNTIME_WORKER"; exec sleep 600')
NAME = "run-worker-x"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def dials_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", RetryPolicy(first=0.02, longest=2.0))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@asynccontextmanager
async def agent(
    tls: Path, port: int, notice: Path | None = None, identity: Path | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """It dials that port, for ever."""
    settings = AgentSettings(
        NAME, ("127.0.0.1", port), tls, grace=0.05, notice_file=notice, identity=identity, redial=True
    )
    task = asyncio.create_task(Agent(settings).run())
    try:
        yield task
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(SOON):
            await asyncio.gather(task, return_exceptions=True)


async def ready(desk: Desk, count: int = 1) -> None:
    await desk.until(lambda: len(desk.of(Ready)) >= count)


async def rank_says(desk: Desk) -> str:
    """Start a rank on the newest connection; its first line."""
    seen = len(desk.of(Output))
    desk.arrivals[-1].send(StartRank(f"{desk.arrivals[-1].hello.worker}.0.{len(desk.arrivals)}~0", 0, {}))
    await desk.until(lambda: len(desk.of(Output)) > seen)
    return desk.of(Output)[-1].lines[0]


def children() -> set[int]:
    """Those that run: what ends the warm process' leftovers is an orphan after it, and this process' to wait for."""
    return {each.pid for each in psutil.Process().children(recursive=True) if not has_ended(each.pid)}


class TestRedials:
    def test_a_launcher_that_hung_up_under_another_name_with_its_warm_process(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, SLEEPER) as desk, agent(tls, desk.port):
                await ready(desk)
                assert await rank_says(desk) == NAME
                before = children()
                for number in (1, 2):
                    desk.arrivals[-1].abort()
                    await ready(desk, number + 1)
                    assert desk.arrivals[-1].hello.worker == f"{NAME}.r{number}"
                    assert len(children() & before) == 2, "the ranks have ended; warm process and keeper have not"
                    assert await rank_says(desk) == f"{NAME}.r{number}"
                assert desk.ends == [NAME, f"{NAME}.r1"]
                assert desk.of(RankExited) == []  # Nobody is told of the ranks of another launcher.

        asyncio.run(run())

    def test_with_the_token_that_its_pod_has_by_then(self, tls: Path, tmp_path: Path) -> None:
        shown: list[str] = []
        file = tmp_path / "token"

        async def prove(hello: Hello) -> str | None:
            shown.append(hello.token)
            return None

        async def run() -> None:
            file.write_text("first\n")
            async with listening(tls, SLEEPER, prove=prove) as desk, agent(tls, desk.port, identity=file):
                await ready(desk)
                for number, content in enumerate([b"renewed", b"x" * (TOKEN + 1), "é".encode(), None], 2):
                    file.unlink() if content is None else file.write_bytes(content)
                    desk.arrivals[-1].abort()
                    await ready(desk, number)

        asyncio.run(run())
        assert shown == ["first", "renewed", "", "", ""]

    def test_until_there_is_a_launcher(self, tls: Path) -> None:
        async def run() -> None:
            port = free_port()
            async with agent(tls, port) as task:
                await asyncio.sleep(2 * module.RETRY.first)
                async with listening(tls, SLEEPER, port=port) as desk:
                    await ready(desk)
                async with listening(tls, SLEEPER, used=[NAME], port=port) as desk:
                    await ready(desk)
                    assert desk.arrivals[0].hello.worker == f"{NAME}.r1"
                    assert not task.done()

        asyncio.run(run())

    def test_whoever_answers_meanwhile(self, tls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another run's launcher, one that hangs up on everybody, one that ends in the handshake."""
        certificates.create(tmp_path / "other")
        monkeypatch.setattr(module, "COMPLAINT", 0.0)
        monkeypatch.setattr(module, "RETRY", RetryPolicy(first=0.02, longest=0.02))

        async def run() -> None:
            port, refused, turned_away = free_port(), asyncio.Event(), asyncio.Event()
            monkeypatch.setattr(
                module.log, "warning", lambda form, words: "is not this run's" in words and refused.set()
            )

            async def close_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                turned_away.set()
                writer.transport.abort()

            async with agent(tls, port):
                for context, seen in (
                    (launcher_context(tmp_path / "other"), refused),
                    (None, turned_away),
                    (launcher_context(tls), turned_away),
                ):
                    seen.clear()
                    async with await asyncio.start_server(close_connection, "127.0.0.1", port, ssl=context):
                        await seen.wait()
                    await handshakes()
                async with listening(tls, SLEEPER, port=port) as desk:
                    await ready(desk)

        asyncio.run(run())

    def test_no_more_once_released_but_waits_to_be_terminated(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, SLEEPER) as desk, agent(tls, desk.port) as task:
                await ready(desk)
                await rank_says(desk)
                desk.arrivals[0].send(Release("enough"))
                await desk.until(lambda: desk.ends == [NAME])
                # psutil's own way to wait would reap what is the agent's to reap.
                async with asyncio.timeout(SOON):
                    while children():  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.01)
                assert not task.done()
                os.kill(os.getpid(), signal.SIGTERM)
                async with asyncio.timeout(SOON):
                    await task
                assert len(desk.arrivals) == 1

        asyncio.run(run())

    def test_once_it_is_clear_that_nobody_has_taken_it(
        self, tls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "STILL_HERE", timedelta(seconds=0.2))
        notice = tmp_path / "notice.json"

        async def run() -> None:
            async with listening(tls, SLEEPER) as desk, agent(tls, desk.port, notice):
                await ready(desk)
                await rank_says(desk)
                write_atomically(notice, to_json(ReclaimNotice("aws", utc_now())))
                await desk.until(lambda: desk.ends == [NAME])
                notice.unlink()
                await ready(desk, 2)
                assert await rank_says(desk) == f"{NAME}.r1"

        asyncio.run(run())

    def test_after_a_rest_when_it_was_released_for_no_reason_of_its_own(
        self, tls: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "REST", timedelta(seconds=0.1))

        async def run() -> None:
            async with listening(tls, SLEEPER) as desk, agent(tls, desk.port):
                await ready(desk)
                desk.arrivals[0].send(Release("its node is being drained"))
                await ready(desk, 2)
                assert await rank_says(desk) == f"{NAME}.r1"

        asyncio.run(run())


class TestSigterm:
    def test_while_dialling_ends_it_at_once(self, tls: Path) -> None:
        async def run() -> None:
            async with agent(tls, free_port()) as task:
                await asyncio.sleep(module.RETRY.first)
                os.kill(os.getpid(), signal.SIGTERM)
                async with asyncio.timeout(SOON):
                    await task

        asyncio.run(run())

    def test_is_a_notice_after_which_it_does_not_come_back(self, tls: Path) -> None:
        async def run() -> None:
            async with listening(tls, SLEEPER) as desk, agent(tls, desk.port) as task:
                await ready(desk)
                os.kill(os.getpid(), signal.SIGTERM)
                await desk.until(lambda: bool(desk.of(ReclaimNotice)))
                desk.arrivals[0].abort()
                async with asyncio.timeout(SOON):
                    await task
                assert [len(desk.arrivals), desk.of(ReclaimNotice)[0].source] == [1, "sigterm"]

        asyncio.run(run())

    def test_reaches_it_as_process_one(self, tls: Path) -> None:
        """Process 1 of a pid namespace, as in a container without an init: what it has no handler for is ignored."""
        as_root = () if os.getuid() == 0 else ("--user", "--map-root-user")
        command = [
            *("unshare", *as_root, "--fork", "--pid", "--mount-proc", "--kill-child"),
            *(sys.executable, "-m", "elastic_runtime.agent", "--worker", NAME, "--redial"),
            *("--launcher", f"127.0.0.1:{free_port()}", "--tls", str(tls)),
        ]
        outer = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            [inner] = wait_for(lambda: psutil.Process(outer.pid).children())
            wait_for(lambda: _handles_sigterm(inner.pid))
            inner.terminate()
            assert outer.wait(SOON) == 0
        finally:
            outer.kill()
            outer.communicate()


def wait_for(look: Callable[[], T]) -> T:
    """What it returns, once that is something."""
    deadline = time.monotonic() + SOON
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def _handles_sigterm(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def _has_v6_loopback() -> bool:
    return any(each.address == "::1" for each in psutil.net_if_addrs()["lo"])


class TestArguments:
    WORDS = ("--worker", "w", "--launcher", "[fd00::1]:7077", "--tls", "/tls", "--slots", "2", "--node", "n")

    def test_name_an_interface_by_its_address(self) -> None:
        found = parse_arguments([*self.WORDS, "--address", "127.0.0.1", "--redial"])
        assert (found.interface, found.redial, found.slots, found.node) == ("lo", True, 2, "n")
        assert (found.address, parse_arguments([*self.WORDS]).address) == ("127.0.0.1", "127.0.0.1")

    @pytest.mark.skipif(not _has_v6_loopback(), reason="there is no IPv6 here")
    def test_write_an_address_as_programs_do(self) -> None:
        assert parse_arguments([*self.WORDS, "--address", "0:0:0:0:0:0:0:1"]).address == "::1"

    def test_have_a_place_for_the_hostfile_where_a_pod_has_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = str(tmp_path / "hostfile")
        monkeypatch.setattr("elastic_runtime.agent.__main__.HOSTFILE", path)
        assert parse_arguments([*self.WORDS, "--redial"]).hostfile == path
        assert parse_arguments([*self.WORDS]).hostfile is None, "a folder of a machine may be anybody's"
        monkeypatch.setattr("elastic_runtime.agent.__main__.HOSTFILE", str(tmp_path / "no such folder" / "hostfile"))
        assert parse_arguments([*self.WORDS, "--redial"]).hostfile is None

    def test_name_an_address_that_is_here(self) -> None:
        with pytest.raises(InvalidSettings, match=r"--address: no network interface here has the address 192\.0\.2\.7"):
            parse_arguments([*self.WORDS, "--address", "192.0.2.7"])
        assert module.interface_of("::1" if socket.has_ipv6 and _has_v6_loopback() else "127.0.0.1") == "lo"


def test_a_silent_machine_is_noticed(tls: Path) -> None:
    """The kernel's part: acknowledgements that do not come end the connection in time."""

    async def run() -> None:
        async with listening(tls, SLEEPER) as desk, agent(tls, desk.port):
            await ready(desk)
            [own] = [
                each
                for each in psutil.Process().net_connections("tcp")
                if each.raddr and each.raddr.port == desk.port and each.status == "ESTABLISHED"
            ]
            with socket.socket(fileno=os.dup(own.fd)) as sock:
                max_wait = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert max_wait == SLEEPER.timing.agent_silence * 1000

    asyncio.run(run())


def test_dialling_ends_without_redial(tls: Path) -> None:
    with pytest.raises(ClusterUnavailable, match="no launcher at"):
        asyncio.run(module.dial(("127.0.0.1", free_port()), tls, 0.0))
