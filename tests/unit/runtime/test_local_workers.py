"""The worker set of this machine, with a shell script for an agent and time that stands still."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic_runtime.agent import zygote
from elastic_runtime.clock import utc_now
from elastic_runtime.launcher.local import workers as local_workers
from elastic_runtime.launcher.local.workers import COMING, SHORT_LIFE, LocalWorkers
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import NoticeService, RecoverySpec, RunSpec, WorkersSpec
from tests.paced import until

SOON = 20.0
WILLING = "trap 'exit 0' TERM; sleep 600 & wait"
STUBBORN = "trap '' TERM; sleep 600"
FAILING = "exit 1"
SPEC = RunSpec(
    *("run", "uid", ("true",), WorkersSpec(1, 1, 8)),
    recovery=RecoverySpec(backoff=1.0, backoff_maximum=3.0),
    warm=False,
)


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(local_workers, "time", made)
    return made


class Set(LocalWorkers):
    """One whose agents run ``script``."""

    script = WILLING

    def __init__(self, folder: Path) -> None:
        super().__init__(RunDir(folder), SPEC)
        self.changed = asyncio.Event()
        self.started: dict[str, int] = {}
        self.exited: dict[str, int] = {}

    def _command(self, name: str) -> list[str]:
        return ["sh", "-c", self.script]

    def _handle_zygote_message(self, message: dict[str, Any]) -> None:
        super()._handle_zygote_message(message)
        if "started" in message:
            self.started[message["started"]] = message["pid"]
        elif "exited" in message:
            self.exited[message["exited"]] = message["code"]
        self.changed.set()

    def _zygote_ended(self) -> None:
        super()._zygote_ended()
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def have(self, wanted: int) -> list[str]:
        """Ask for so many, until they are there. Returns their names."""
        self.reconcile(wanted)
        await self.until(lambda: len(self.started) == self._count and len(self.living()) == wanted)
        return self.living()

    def devices(self, name: str) -> str:
        """The value of CUDA_VISIBLE_DEVICES that it was started with; of the forked process, that is the zygote's."""
        process = psutil.Process(self.started[name])
        # The kernel sets the name first, and for a moment there is no environment.
        until(lambda: process.name() == "sh" and process.environ(), "it is executed")
        return process.environ()["CUDA_VISIBLE_DEVICES"]

    def living(self) -> list[str]:
        return [name for name in self.started if name in self._agents]


@asynccontextmanager
async def workers(folder: Path, script: str = WILLING) -> AsyncIterator[Set]:
    RunDir(folder).notices.mkdir()
    made = Set(folder)
    made.script = script
    made.open("127.0.0.1:1")
    try:
        await made.until(lambda: made._ready)
        yield made
    finally:
        await made.end_workers()
        await made.end_workers()  # harmless


def test_has_as_many_agents_as_wanted_the_newest_leaving_first(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            assert await some.have(2) == ["worker-0", "worker-1"]
            assert await some.have(4) == ["worker-0", "worker-1", "worker-2", "worker-3"]
            assert await some.have(1) == ["worker-0"]
            assert set(some.exited) == {"worker-1", "worker-2", "worker-3"}
            assert await some.have(2) == ["worker-0", "worker-4"]

    asyncio.run(run())


def test_those_of_the_lowest_ranks_stay_as_the_launcher_has_them(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            await some.have(5)
            some.world({"worker-3": 0, "worker-1": 2, "worker-0": 4})
            assert await some.have(3) == ["worker-0", "worker-1", "worker-3"], "who trains"
            assert await some.have(2) == ["worker-1", "worker-3"]
            (RunDir(tmp_path).notices / "worker-3.json").touch()
            assert await some.have(1) == ["worker-1"], "who has no notice"

    asyncio.run(run())


def test_each_has_devices_of_its_own_which_the_next_one_gets_when_it_has_ended(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-a,7")

    async def run() -> None:
        async with workers(tmp_path) as some:
            devices = some.devices
            await some.have(3)
            assert [devices(name) for name in ("worker-0", "worker-1", "worker-2")] == ["5", "GPU-a", "7"]
            os.kill(some.started["worker-1"], signal.SIGKILL)
            await some.until(lambda: "worker-1" in some.exited)
            clock.now += 60.0
            await some.have(3)
            assert devices("worker-3") == "GPU-a"
            assert "shares" not in caplog.text
            await some.have(4)
            assert devices("worker-4") == "5"
            assert "worker-4 shares its devices with another worker" in caplog.text

    asyncio.run(run())


def test_one_that_was_asked_to_end_does_not_count_and_is_asked_once(tmp_path: Path, clock: Clock) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()

    async def run() -> None:
        deaf = f"trap 'test -e go && exit 0' TERM; : > {ready}/$$; while :; do sleep 0.02; done"
        async with workers(tmp_path, deaf) as some, asyncio.timeout(SOON):
            await some.have(2)
            while len(list(ready.iterdir())) < 2:  # noqa: ASYNC110  # a shell tells nobody that its trap is set
                await asyncio.sleep(0.01)
            some.reconcile(1)
            some.reconcile(2)
            await some.until(lambda: len(some.started) == 3)
            assert some.living() == ["worker-0", "worker-1", "worker-2"]
            some.script = "exit 9"
            some.reconcile(2)
            assert some._count == 3
            for name in some.living():
                os.kill(some.started[name], signal.SIGKILL)

    asyncio.run(run())


def test_replaces_one_that_ends(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            await some.have(2)
            clock.now += SHORT_LIFE
            os.kill(some.started["worker-0"], signal.SIGKILL)
            await some.until(lambda: bool(some.exited))
            assert await some.have(2) == ["worker-1", "worker-2"]

    asyncio.run(run())


def test_holds_back_replacements_of_those_that_live_short(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path, FAILING) as some:
            for count, delay in enumerate([1.0, 2.0, 3.0, 3.0], start=1):
                some.reconcile(1)
                await some.until(lambda count=count: len(some.exited) == count)
                clock.now += delay - 0.01
                some.reconcile(1)
                assert some._count == count, "not yet"
                clock.now += 0.01
            some.script = WILLING
            await some.have(1)
            clock.now += SHORT_LIFE
            some.script = FAILING
            os.kill(some.started["worker-4"], signal.SIGKILL)
            await some.until(lambda: len(some.exited) == 5)
            some.reconcile(1)  # at once, and from the first delay again
            await some.until(lambda: len(some.exited) == 6)
            clock.now += 1.0
            some.script = WILLING
            await some.have(1)

    asyncio.run(run())


def test_one_that_leaves_with_success_is_replaced_at_once(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path, "exit 0") as some:
            some.reconcile(1)
            await some.until(lambda: some.exited == {"worker-0": 0})
            some.script = WILLING
            assert await some.have(1) == ["worker-1"]

    asyncio.run(run())


def test_a_notice_goes_with_its_worker(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            await some.have(1)
            RunDir(tmp_path).write_notice("worker-0", ReclaimNotice("spot", utc_now()))
            os.kill(some.started["worker-0"], signal.SIGTERM)
            await some.until(lambda: bool(some.exited))
            assert list(RunDir(tmp_path).notices.iterdir()) == []

    asyncio.run(run())


def test_what_a_killed_agent_leaves_behind_is_ended(tmp_path: Path, clock: Clock) -> None:
    os.mkfifo(tmp_path / "pid")
    script = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' & wait"

    async def run() -> None:
        async with workers(tmp_path, script) as some:
            await some.have(1)
            left_behind = int(await asyncio.to_thread((tmp_path / "pid").read_text))
            os.kill(some.started["worker-0"], signal.SIGKILL)
            await some.until(lambda: bool(some.exited))
            assert not psutil.pid_exists(left_behind)

    asyncio.run(run())


def test_goes_on_with_other_agents_when_their_zygote_was_killed(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            await some.have(2)
            clock.now += SHORT_LIFE
            assert some._zygote is not None
            os.kill(some._zygote.pid, signal.SIGKILL)
            await some.until(lambda: not some._ready)
            await some.until(lambda: some._ready)
            assert await some.have(2) == ["worker-2", "worker-3"]
            for name in ("worker-0", "worker-1"):
                assert not psutil.pid_exists(some.started[name])

    asyncio.run(run())


@pytest.mark.parametrize("script", [WILLING, STUBBORN])
def test_closing_leaves_nothing(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(local_workers, "CLOSE_TIMEOUT", SOON if script == WILLING else 0.1)
    send = LocalWorkers._signal

    def send_and_be_patient_after_sigkill(own: LocalWorkers, agent: Any, number: int) -> None:
        if number == signal.SIGKILL:
            monkeypatch.setattr(local_workers, "CLOSE_TIMEOUT", SOON)
        send(own, agent, number)

    monkeypatch.setattr(Set, "_signal", send_and_be_patient_after_sigkill)

    async def run() -> Set:
        async with workers(tmp_path, script) as some:
            await some.have(3)
        return some

    some = asyncio.run(run())
    assert len(some.exited) == 3
    assert psutil.Process().children(recursive=True) == []


def test_closing_before_it_was_opened_or_ready(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        await Set(tmp_path).end_workers()
        some = Set(tmp_path)
        some.open("127.0.0.1:1")
        some.reconcile(2)  # nothing to fork from yet
        assert some._count == 0
        await some.end_workers()

    asyncio.run(run())


def test_the_command_of_an_agent_is_one_that_it_understands(tmp_path: Path) -> None:
    from elastic_runtime.agent.__main__ import parse_arguments
    from elastic_runtime.agent.command import Entry, parse

    some = LocalWorkers(RunDir(tmp_path), SPEC)
    some._address = "127.0.0.1:4711"
    command = parse(some._command("worker-3"))
    assert command is not None
    assert (command.entry, command.target) == (Entry.MODULE, "elastic_runtime.agent")
    settings = parse_arguments(list(command.arguments))
    assert (settings.worker, settings.launcher) == ("worker-3", ("127.0.0.1", 4711))
    assert settings.notice_file == tmp_path / "notices" / "worker-3.json"
    assert settings.grace == SPEC.timing.leave_grace


@pytest.mark.parametrize(("named", "asked"), [("auto", "none"), ("none", "none"), ("aws", "aws")])
def test_no_agent_of_this_machine_searches_for_a_metadata_service(tmp_path: Path, named: str, asked: str) -> None:
    from elastic_runtime.agent.__main__ import parse_arguments

    spec = replace(SPEC, recovery=RecoverySpec(notices=NoticeService(named)))
    command = LocalWorkers(RunDir(tmp_path), spec)._command("worker-0")
    assert parse_arguments([*command[3:], "--launcher", "127.0.0.1:1"]).metadata.service is NoticeService(asked)


def test_one_that_the_launcher_has_lost_is_killed_and_replaced_though_it_is_stopped(
    tmp_path: Path, clock: Clock
) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            await some.have(2)
            clock.now += SHORT_LIFE
            os.kill(some.started["worker-0"], signal.SIGSTOP)
            some.end("worker-0")
            some.end("worker-7")  # harmless
            await some.until(lambda: some.exited == {"worker-0": -signal.SIGKILL})
            assert await some.have(2) == ["worker-1", "worker-2"]

    asyncio.run(run())


def test_one_that_never_connects_is_killed_and_replaced(tmp_path: Path, clock: Clock) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            await some.have(2)
            some.came("worker-1")
            clock.now += COMING + 1
            some.reconcile(2)
            assert some.warnings() == ("worker-0 has not connected within 60 s: it is killed, and replaced",)
            await some.until(lambda: some.exited == {"worker-0": -signal.SIGKILL})
            assert await some.have(2) == ["worker-1", "worker-2"]
            assert some.warnings() == ()

    asyncio.run(run())


def test_a_stopped_zygote_that_is_asked_for_something_is_replaced(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with workers(tmp_path) as some:
            await some.have(1)
            monkeypatch.setattr(zygote, "ANSWER", 0.5)
            clock.now += SHORT_LIFE
            assert some._zygote is not None
            os.kill(some._zygote.pid, signal.SIGSTOP)
            some.end("worker-0")
            await some.until(lambda: not some._ready)
            monkeypatch.setattr(zygote, "ANSWER", SOON)
            await some.until(lambda: some._ready)
            assert await some.have(1) == ["worker-1"]

    asyncio.run(run())
