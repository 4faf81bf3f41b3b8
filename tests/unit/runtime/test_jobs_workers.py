"""The worker set of jobs, with a queue that is played."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.launcher.jobs import workers as module
from elastic_runtime.launcher.jobs.workers import JobWorkers
from elastic_runtime.launcher.slurm.queue import SlurmQueue
from elastic_runtime.retry import RetryPolicy
from elastic_runtime.run.jobs import OUTPUTS
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RecoverySpec, RunSpec, WorkersSpec
from elastic_runtime.slurm.commands import Commands
from elastic_runtime.slurm.jobs import SlurmSpec
from tests.unit.runtime.agent_bench import SOON

RUN = RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3), recovery=RecoverySpec(backoff=0.01))


class Queue:
    """Slurm's commands, as far as they are called here: jobs are in the state that the test gives them."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.comments: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.cancelled: list[tuple[str, ...]] = []
        self.complaint = ""
        self.taken = self.deaf = False
        """Whether a job is there though sbatch complains; whether jobs cannot be ended."""
        self.out = False
        self.looks = self.submissions = 0

    def __call__(self, command: Sequence[str], stdin: str, variables: object) -> tuple[int, str, str]:
        assert variables
        if self.out:
            return 1, "", f"{command[0]}: error: Unable to contact slurm controller (connect failure)"
        match command[0]:
            case "sbatch":
                self.submissions += 1
                if self.complaint and not self.taken:
                    return 1, "", f"sbatch: error: {self.complaint}"
                assert stdin.startswith("#!/bin/bash -l\n")
                number = str(len(self.states) + 1)
                [said] = [each for each in command if each.startswith("--comment=")]
                self.comments[number], self.states[number] = said.removeprefix("--comment="), "PENDING"
                if self.complaint:
                    return 1, "", f"sbatch: error: {self.complaint}"
                return 0, f"{number}\n", ""
            case "squeue":
                self.looks += 1
                return 0, "".join(f"{self.line(number)}\n" for number in self.states), ""
            case "scancel" if self.deaf:
                return 1, "", "scancel: error: Unable to contact slurm controller (connect failure)"
            case "scancel":
                self.cancelled.append(tuple(command[2:]))
                for number in command[2:]:
                    if number in self.states and "--signal=TERM" not in command:
                        self.states[number] = "CANCELLED"
                return 0, "", ""
        raise AssertionError(command)

    def line(self, number: str) -> str:
        end, reason = self.ends.get(number, "N/A"), self.reasons.get(number, "None")
        return f"{number}|{self.states[number]}|{end}|n1|{reason}|{self.comments[number]}"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOON", 0.01)
    monkeypatch.setattr(SlurmQueue, "later", 0.01)


@asynccontextmanager
async def played(folder: Path, queue: Queue) -> AsyncIterator[JobWorkers]:
    made = JobWorkers(RunDir(folder), RUN, SlurmQueue(RUN, SlurmSpec("python", grace=20.0), Commands(queue)))
    made.open("10.0.0.1:7777")
    try:
        yield made
    finally:
        await made.end_workers()
        await made.end_workers()  # harmless
        assert set(queue.states.values()) <= {"CANCELLED", "COMPLETED", "FAILED"}


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110  # threads call the commands
            await asyncio.sleep(0.005)


def test_as_many_jobs_as_are_wanted_and_none_in_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        queue = Queue()
        async with played(tmp_path, queue) as workers:
            workers.reconcile(2)
            await until(lambda: workers.expects("worker-1"))  # a moment after its job is there
            assert len(queue.states) == 2
            assert not workers.expects("worker-2")
            queue.states["1"] = "RUNNING"
            workers.came("worker-0")
            workers.world({"worker-0": 0})
            workers.reconcile(1)
            await until(lambda: queue.cancelled)
            assert queue.cancelled == [("2",)], "it is in the queue, where a signal would not end it"

    asyncio.run(run())


def test_one_that_trains_is_asked_to_leave_and_is_not_killed(tmp_path: Path) -> None:
    async def run() -> None:
        queue = Queue()
        async with played(tmp_path, queue) as workers:
            workers.reconcile(2)
            await until(lambda: workers.expects("worker-1"))
            queue.states.update({"1": "RUNNING", "2": "RUNNING"})
            for name in ("worker-0", "worker-1"):
                workers.came(name)
            workers.world({"worker-0": 0, "worker-1": 1})
            workers.reconcile(1)
            await until(lambda: queue.cancelled)
            assert queue.cancelled == [("--signal=TERM", "2")]
            queue.states["2"] = "COMPLETED"
            await until(lambda: not workers.expects("worker-1"))
            assert workers.warnings() == ()

    asyncio.run(run())


@pytest.mark.parametrize("meanwhile", [False, True])
def test_of_many_the_one_that_was_named_leaves_and_no_other(tmp_path: Path, meanwhile: bool) -> None:
    """Also if notice and size come after a look for notices, and before what was seen is acted upon."""

    async def run() -> None:
        queue, folder, loop = Queue(), RunDir(tmp_path), asyncio.get_running_loop()
        folder.notices.mkdir()
        async with played(tmp_path, queue) as workers:

            def name_one() -> None:
                folder.write_notice("worker-1", ReclaimNotice("scale", utc_now()))
                workers.reconcile(2)

            def found_none(_: object) -> frozenset[str]:
                vars(workers).pop("_with_notice")
                loop.call_soon_threadsafe(name_one)
                return frozenset()

            workers.reconcile(3)
            await until(lambda: workers.expects("worker-2"))
            for number, name in enumerate(("worker-0", "worker-1", "worker-2")):
                queue.states[str(number + 1)] = "RUNNING"
                workers.came(name)
            workers.world({"worker-0": 0, "worker-1": 1, "worker-2": 2})
            if meanwhile:
                vars(workers)["_with_notice"] = found_none
            else:
                name_one()
            await until(lambda: queue.cancelled)
            queue.states["2"] = "COMPLETED"
            await until(lambda: not workers.expects("worker-1"))
            assert queue.cancelled == [("--signal=TERM", "2")]
            assert len(queue.states) == 3, "nobody takes its place"

    asyncio.run(run())


def test_one_that_could_not_be_asked_to_leave_is_asked_again(tmp_path: Path) -> None:
    async def run() -> None:
        queue = Queue()
        async with played(tmp_path, queue) as workers:
            workers.reconcile(2)
            await until(lambda: workers.expects("worker-1"))
            queue.states.update({"1": "RUNNING", "2": "RUNNING"})
            for name in ("worker-0", "worker-1"):
                workers.came(name)
            workers.world({"worker-0": 0, "worker-1": 1})
            queue.deaf = True
            workers.reconcile(1)
            await until(workers.refusal)
            queue.deaf = False
            await until(lambda: queue.cancelled)
            assert queue.cancelled[0] == ("--signal=TERM", "2")

    asyncio.run(run())


def test_a_job_that_is_there_though_its_submission_failed_is_one_of_the_runs(tmp_path: Path) -> None:
    async def run() -> None:
        queue = Queue()
        queue.complaint, queue.taken = "Batch job submission failed: Socket timed out on send/recv operation", True
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(lambda: workers.expects("worker-0"))
            queue.complaint = ""
            looks = queue.looks
            await until(lambda: queue.looks > looks + 5)
            assert list(queue.states) == ["1"]

    asyncio.run(run())


def test_slurm_is_not_asked_without_end_for_what_it_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "backoff_policy", lambda _: RetryPolicy(1000.0, 1000.0))

    async def run() -> None:
        queue = Queue()
        queue.complaint = "Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(lambda: queue.submissions)
            await asyncio.sleep(0.1)  # ten looks
            assert queue.submissions == 1
            refusal = workers.refusal()
            assert refusal is not None
            assert "QOS policy" in refusal.words
            assert not refusal.hopeless
            workers.reconcile(0)
            await until(lambda: workers.refusal() is None)

    asyncio.run(run())


def test_a_job_that_is_being_submitted_when_the_run_ends_is_ended_too(tmp_path: Path) -> None:
    taken, goes_on = threading.Event(), threading.Event()

    class Slow(Queue):
        def __call__(self, command: Sequence[str], stdin: str, variables: object) -> tuple[int, str, str]:
            if command[0] == "sbatch":
                taken.set()
                assert goes_on.wait(SOON)
            return super().__call__(command, stdin, variables)

    async def run() -> None:
        queue = Slow()
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(taken.is_set)
            asyncio.get_running_loop().call_later(0.2, goes_on.set)
        assert queue.states == {"1": "CANCELLED"}

    asyncio.run(run())


def test_what_cannot_be_closed_does_not_keep_the_end_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: SlurmQueue) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(SlurmQueue, "close", refuse)

    async def run() -> None:
        async with played(tmp_path, Queue()) as workers:
            workers.reconcile(0)

    asyncio.run(run())
    assert "what is left of the run in Slurm: the disk is full" in caplog.text


def test_what_slurm_refuses_for_good_is_told_and_tried_again_later(tmp_path: Path) -> None:
    async def run() -> None:
        queue = Queue()
        queue.complaint = "Batch job submission failed: Invalid qos specification"
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(workers.refusal)
            told = workers.refusal()
            assert told is not None
            assert told.hopeless
            assert "Invalid qos specification" in told.words
            queue.complaint = ""
            await until(lambda: queue.states)
            await until(lambda: workers.refusal() is None or not workers.refusal().hopeless)  # type: ignore[union-attr]

    asyncio.run(run())


def test_why_a_job_waits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        queue = Queue()
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(lambda: queue.states)
            queue.reasons["1"] = "Resources"
            await until(lambda: (told := workers.refusal()) is not None and "nodes are in use" in told.words)
            assert workers.warnings() == (), "it may start in a moment"
            monkeypatch.setattr(module, "PATIENCE", 0.0)
            told: list[str] = []
            await until(lambda: told.extend(workers.warnings()) or told)  # type: ignore[func-returns-value]
            assert told == ["worker-0 is job 1. Slurm has not started it yet (Resources: nodes are in use)"]
            await asyncio.sleep(0.05)
            assert workers.warnings() == (), "once"

    asyncio.run(run())


def test_an_outage_of_slurm_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        queue = Queue()
        queue.out = True
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(lambda: "Unable to contact slurm controller" in caplog.text)
            refused = workers.refusal()
            assert refused is not None
            assert "Unable to contact slurm controller" in refused.words
            assert not refused.hopeless
            queue.out = False
            await until(lambda: queue.states)
            await until(lambda: workers.refusal() is None)

    asyncio.run(run())


def test_a_job_that_ends_before_its_agent_connects_is_told_with_its_last_line(tmp_path: Path) -> None:
    async def run() -> None:
        queue, told = Queue(), []
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(lambda: queue.states)
            (tmp_path / OUTPUTS / "worker-0.log").write_text("bash: module: command not found\n")
            queue.states["1"], queue.reasons["1"] = "FAILED", "NonZeroExitCode"
            await until(lambda: told.extend(workers.warnings()) or told)  # type: ignore[func-returns-value]
            assert told == [
                "job 1 of worker-0 ended as FAILED (NonZeroExitCode) before its agent connected; its last line: "
                "bash: module: command not found"
            ]
            await until(lambda: len(queue.states) == 2)

    asyncio.run(run())


def test_a_lost_worker_is_killed_and_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        queue = Queue()
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(lambda: queue.states)
            queue.states["1"] = "RUNNING"
            workers.came("worker-0")
            assert workers.end("worker-0") == "its job is ended, and another is submitted"
            await until(lambda: len(queue.states) == 2)
            assert queue.cancelled[0] == ("1",)

    asyncio.run(run())


def test_one_that_has_left_by_itself_is_replaced_as_soon_as_its_job_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm says so a moment after the agent has gone, when nothing else may be awaited."""
    monkeypatch.setattr(SlurmQueue, "later", 1000.0)

    async def run() -> None:
        queue = Queue()
        async with played(tmp_path, queue) as workers:
            workers.reconcile(1)
            await until(lambda: workers.expects("worker-0"))
            queue.states["1"] = "RUNNING"
            workers.came("worker-0")
            workers.gone("worker-0")
            looks = queue.looks
            await until(lambda: queue.looks > looks + 1)
            queue.states["1"] = "COMPLETED"
            await until(lambda: workers.expects("worker-1"))

    asyncio.run(run())


def test_a_deadline_is_that_of_a_job_that_ends_soon(tmp_path: Path) -> None:
    async def run() -> None:
        queue, soon = Queue(), utc_now() + timedelta(seconds=30)
        async with played(tmp_path, queue) as workers:
            workers.reconcile(2)
            await until(lambda: workers.expects("worker-1"))
            queue.states.update({"1": "RUNNING", "2": "RUNNING"})
            queue.ends.update({"1": f"{soon.timestamp():.0f}", "2": f"{(soon + timedelta(hours=1)).timestamp():.0f}"})
            await until(lambda: workers.deadline("worker-0"))
            assert workers.deadline("worker-1") is None

    asyncio.run(run())
