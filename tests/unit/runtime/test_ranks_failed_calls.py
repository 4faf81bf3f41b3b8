"""A failed system call costs a warm process one rank or one signal, and not all of its ranks."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from elastic_runtime.protocol.wire import RankStarted
from tests.unit.runtime.worker_bench import Worker, code, gone

FORKS = """
import errno, os
fork, killpg = os.fork, os.killpg
def may_fork():
    if os.path.exists(os.environ["TEST_NO_FORK"]):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
def may_kill(group, number):
    if number == {number}:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    killpg(group, number)
os.fork, os.killpg = may_fork, may_kill
"""
CHILD = """
import os, subprocess
child = subprocess.Popen(["sleep", "0.1"])
with open(os.environ["TEST_CHILD"], "w") as file:
    file.write(str(child.pid))
"""
FAMILY = ("sh", "-c", "sleep 600 & echo $!; echo ready; wait")
TRAINS = code("import time; print('ready'); time.sleep(600)")


class NoFork:
    """Whether a warm process with the module ``forks`` can fork."""

    def __init__(self, file: Path) -> None:
        self.allow, self.forbid = file.unlink, file.touch


@pytest.fixture
def no_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NoFork:
    (tmp_path / "forks.py").write_text(FORKS.format(number=int(signal.SIGUSR1)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("TEST_NO_FORK", str(tmp_path / "no fork"))
    return NoFork(tmp_path / "no fork")


def test_a_rank_that_cannot_be_forked_fails_and_says_why(no_fork: NoFork) -> None:
    async def run() -> None:
        async with Worker(True, ("forks",)) as worker:
            pid = await worker.start("a", TRAINS)
            no_fork.forbid()
            assert await worker.run("b", code("pass")) == 127
            words = "cannot start b: no process can be forked: [Errno 11] Resource temporarily unavailable."
            assert worker.lines("b", "stderr")[0].startswith(words)
            assert [each.rank_id for each in worker.of(RankStarted)] == ["a"]
            no_fork.allow()
            assert await worker.run("c", code("pass")) == 0
            assert worker.ranks._zygote._asked == 0, "it would be killed, for an answer that does not come"
            assert psutil.pid_exists(pid)

    asyncio.run(run())


def test_what_ends_the_leftovers_of_ranks_is_started_once_it_can_be(no_fork: NoFork) -> None:
    async def run() -> None:
        async with Worker(True, ("forks",)) as worker:
            before = await worker.start("a", FAMILY)
            zygote = psutil.Process(worker.ranks.pids[0])
            (keeper,) = [child for child in zygote.children() if child.pid != before]
            no_fork.forbid()
            keeper.kill()
            await asyncio.to_thread(gone, keeper.pid)
            assert await worker.run("b", code("pass")) == 127
            no_fork.allow()
            await worker.start("c", FAMILY)
            started = [int(worker.lines(name, "stdout")[0]) for name in "ac"]
            zygote.kill()
            for pid in started:
                await asyncio.to_thread(gone, pid)

    asyncio.run(run())


@pytest.mark.usefixtures("no_fork")
def test_a_signal_that_may_not_be_sent_is_left_out() -> None:
    async def run() -> None:
        async with Worker(True, ("forks",)) as worker:
            pid = await worker.start("a", TRAINS)
            worker.ranks.signal("a", signal.SIGUSR1)
            assert await worker.run("b", code("pass")) == 0
            assert psutil.pid_exists(pid)

    asyncio.run(run())


def test_a_child_that_an_import_has_started_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "starts.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("TEST_CHILD", str(tmp_path / "child"))

    async def run() -> None:
        async with Worker(True, ("starts",)) as worker:
            await worker.start("a", TRAINS)
            await asyncio.to_thread(gone, int((tmp_path / "child").read_text()))
            assert await worker.run("b", code("pass")) == 0
            assert worker.code("a") is None

    asyncio.run(run())
