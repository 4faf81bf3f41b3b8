"""What a rank leaves behind in its process group ends with it, and its output is told to the end."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from elastic_runtime.agent.zygote import LEFTOVER_GRACE
from tests.unit.runtime.worker_bench import LOADER, SOON, Worker, gone, with_worker


class TestLeftovers:
    """What a rank leaves behind in its process group ends with it, and holds nothing up."""

    @pytest.fixture(autouse=True)
    def _no_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("elastic_runtime.agent.ranks.OUTPUT_DRAIN", 10 * SOON)

    def test_at_once_when_a_signal_ended_it(self) -> None:
        async def test(worker: Worker) -> None:
            pid = await worker.start("a", LOADER)
            children = [int(line) for line in worker.lines("a", "stdout")[:2]]
            os.kill(pid, signal.SIGKILL)
            await worker.until(lambda: worker.code("a") is not None)
            assert worker.code("a") == -signal.SIGKILL
            for child in children:
                await asyncio.to_thread(gone, child)

        with_worker(True, test)

    @pytest.mark.parametrize("how", ["0", "3"])
    def test_a_moment_later_when_it_ended_by_itself(self, how: str) -> None:
        async def test(worker: Worker) -> None:
            assert await worker.run("a", LOADER, HOW=how) == int(how)
            *children, ready, last = worker.lines("a", "stdout")
            assert (ready, last) == ("ready", "the last line")
            for child in children:
                await asyncio.to_thread(gone, int(child))

        with_worker(True, test)

    def test_a_tee_may_write_what_it_has_read(self) -> None:
        async def test(worker: Worker) -> None:
            command = ("bash", "-c", "exec > >(sleep 0.01; cat); echo the last words")
            assert await worker.run("a", command) == 0
            assert worker.lines("a", "stdout") == ["the last words"]

        with_worker(False, test)

    def test_the_end_of_its_output_may_come_at_any_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also between the end of the pipe and of who reads it."""
        monkeypatch.setattr("elastic_runtime.agent.ranks._LOOK", 0.0)

        async def test(worker: Worker) -> None:
            for name in "abc":
                assert await worker.run(name, ("sh", "-c", "(sleep 0.01; echo last) & exit 3")) == 3
                assert worker.lines(name, "stdout") == ["last"]

        with_worker(False, test)

    def test_one_in_a_session_of_its_own_lives_and_holds_nothing_up(self) -> None:
        async def test(worker: Worker) -> None:
            assert await worker.run("a", ("sh", "-c", "setsid sleep 600 & echo $!; sleep 0.2")) == 0
            process = psutil.Process(int(worker.lines("a", "stdout")[0]))
            await asyncio.sleep(2 * LEFTOVER_GRACE)
            assert process.status() != psutil.STATUS_ZOMBIE
            process.kill()

        with_worker(False, test)
