"""Whom a fault of ``make chaos`` hits, and what becomes of it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.run.status import Phase, Status, WorkerState, WorkerStatus
from tests.chaos.faults import SEARCH, Injector, Target, choose
from tests.chaos.plan import FAULTS, Fault, FaultKind
from tests.paced import until

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def worker(name: str, *pids: int) -> WorkerStatus:
    return WorkerStatus(name, "here", WorkerState.TRAINING, NOW, slots=1, pids=pids)


HERE = [worker("worker-0", 10, 11), worker("worker-1", 20), worker("worker-2", 30, 31)]


@pytest.mark.parametrize(
    ("kind", "pick", "target"),
    [
        (FaultKind.KILL_RANK, 0.0, Target(("worker-0",), (11,))),
        (FaultKind.KILL_RANK, 0.5, Target(("worker-2",), (31,))),
        (FaultKind.STOP_RANK, 0.999, Target(("worker-2",), (31,))),
        (FaultKind.KILL_ALL_RANKS, 0.0, Target(("worker-0", "worker-2"), (11, 31))),
        (FaultKind.KILL_AGENT, 0.0, Target(("worker-0",), (10,), (11,))),
        (FaultKind.STOP_AGENT, 0.5, Target(("worker-1",), (20,))),
        (FaultKind.NOTICE, 0.999, Target(("worker-2",), (30,), (31,))),
        (FaultKind.NOTICE_ALL, 0.0, Target(("worker-0", "worker-1", "worker-2"), ())),
    ],
)
def test_a_fault_hits_whom_it_is_meant_for(kind: FaultKind, pick: float, target: Target) -> None:
    assert choose(Fault(0.0, kind, pick), HERE) == target


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind is not FaultKind.RESIZE])
def test_a_fault_waits_while_nobody_is_there(kind: FaultKind) -> None:
    assert choose(Fault(0.0, kind), []) is None


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(1, 6))
def test_any_pick_hits_somebody(pick: float, workers: int) -> None:
    here = [worker(f"worker-{index}", index) for index in range(workers)]
    target = choose(Fault(0.0, FaultKind.KILL_AGENT, pick), here)
    assert target is not None
    assert target.signalled == (int(pick * workers),)


# With processes that do nothing else


@dataclass
class Disturbed:
    """Stands in for a run."""

    asked: list[Any] = field(default_factory=list)
    checkpoint: int = 0

    def owns(self, process: psutil.Process) -> bool:
        return process.status() != psutil.STATUS_ZOMBIE

    def resize(self, workers: int) -> None:
        self.asked.append(workers)

    def reclaim(self, worker: str, seconds: float) -> None:
        self.asked.append((worker, seconds))

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")

    def stored(self) -> int:
        return self.checkpoint

    def lose_launcher(self) -> None:
        self.asked.append("lose")


@pytest.fixture
def start() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def sleeper() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield sleeper
    for process in started:
        process.kill()
        process.wait()


def status(*workers: WorkerStatus) -> Status:
    return Status("run", "uid", Phase.RUNNING, "trains", NOW, workers=workers)


def injector(*faults: Fault) -> tuple[Disturbed, Injector]:
    run: Any = Disturbed()
    return run, Injector(run, faults, begin=100.0)


def until_stopped(process: subprocess.Popen[bytes]) -> None:
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it stands still")


def until_going(process: subprocess.Popen[bytes]) -> None:
    until(lambda: psutil.Process(process.pid).status() != psutil.STATUS_STOPPED, "it goes on")


def test_a_fault_is_done_at_its_time_and_once() -> None:
    run, injecting = injector(Fault(1.0, FaultKind.RESIZE, size=3), Fault(2.0, FaultKind.RESIZE, size=1))
    for now in (100.9, 101.0, 101.5, 102.0, 102.5):
        injecting.tick(now, status())
    assert run.asked == [3, 1]
    assert [applied.at for applied in injecting.applied] == [101.0, 102.0]


def test_a_pause_ends_when_its_time_is_over_and_nobody_works_any_more() -> None:
    run, injecting = injector(Fault(1.0, FaultKind.PAUSE, seconds=2.0))
    trains, here = status(), status(worker("worker-0", 1))
    paused = replace(trains, phase=Phase.PAUSED)
    for now, seen in ((101.0, trains), (102.0, paused), (103.5, trains), (104.0, replace(here, phase=Phase.PAUSED))):
        injecting.tick(now, seen)
        assert (run.asked, injecting.applied[0].until) == (["pause"], None)
    for now in (105.0, 106.0):
        injecting.tick(now, paused)
    assert run.asked == ["pause", "resume"]
    assert injecting.applied[0].until == 105.0


def test_a_launcher_is_lost_once_there_is_its_checkpoint_until_the_next_one_has_a_world() -> None:
    run, injecting = injector(Fault(1.0, FaultKind.LOSE_LAUNCHER, stored=10))
    for now, run.checkpoint in ((101.0, 0), (102.0 + SEARCH, 9)):
        injecting.tick(now, status())
        assert (run.asked, injecting.missed) == ([], [])
    run.checkpoint = 12
    injecting.tick(109.0, status())
    assert (run.asked, injecting.applied[0].until) == (["lose"], None)
    for now in (110.0, 111.0):
        injecting.tick(now, status())
    assert run.asked == ["lose"]
    assert injecting.applied[0].until == 110.0


def test_a_stopped_process_goes_on_when_its_time_is_over(start: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent, rank = start(), start()
    here = status(worker("worker-0", agent.pid, rank.pid))
    _, injecting = injector(Fault(1.0, FaultKind.STOP_RANK, seconds=5.0))
    injecting.tick(101.0, here)
    until_stopped(rank)
    assert injecting.applied[0].pids == (rank.pid,)
    injecting.tick(105.9, here)
    until_stopped(rank)
    injecting.tick(106.5, here)
    until_going(rank)
    assert injecting.applied[0].until == 106.5


def test_what_stands_still_goes_on_when_the_round_ends(start: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent = start()
    _, injecting = injector(Fault(1.0, FaultKind.STOP_AGENT, seconds=5.0))
    injecting.tick(101.0, status(worker("worker-0", agent.pid)))
    until_stopped(agent)
    injecting.release(102.0)
    until_going(agent)
    assert injecting.applied[0].until == 102.0


def test_a_killed_agent_takes_its_ranks_along(start: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent, rank = start(), start()
    _, injecting = injector(Fault(1.0, FaultKind.KILL_AGENT))
    injecting.tick(101.0, status(worker("worker-0", agent.pid, rank.pid)))
    assert agent.wait(10) == -signal.SIGKILL
    assert injecting.applied[0].pids == (agent.pid, rank.pid)


@pytest.mark.parametrize("taken", [True, False])
def test_a_noticed_worker_is_killed_at_its_deadline_if_it_is_to_be_taken(
    start: Callable[[], subprocess.Popen[bytes]], taken: bool
) -> None:
    agent = start()
    here = status(worker("worker-0", agent.pid))
    run, injecting = injector(Fault(1.0, FaultKind.NOTICE, seconds=2.0, taken=taken))
    injecting.tick(101.0, here)
    injecting.tick(102.9, here)
    assert run.asked == [("worker-0", 2.0)]
    assert agent.poll() is None
    injecting.tick(103.0, here)
    kinds = [applied.fault.kind for applied in injecting.applied]
    assert kinds == [FaultKind.NOTICE, *([FaultKind.KILL_AGENT] if taken else [])]
    if taken:
        assert agent.wait(10) == -signal.SIGKILL


def test_a_noticed_worker_that_has_left_is_not_killed(start: Callable[[], subprocess.Popen[bytes]]) -> None:
    agent = start()
    _, injecting = injector(Fault(1.0, FaultKind.NOTICE, seconds=2.0, taken=True))
    injecting.tick(101.0, status(worker("worker-0", agent.pid)))
    injecting.tick(103.0, status(replace(worker("worker-0", agent.pid), state=WorkerState.LEFT)))
    assert agent.poll() is None
    assert len(injecting.applied) == 1


def test_a_fault_without_anybody_to_hit_is_tried_for_a_while_and_left_out(
    start: Callable[[], subprocess.Popen[bytes]],
) -> None:
    rank_kill = Fault(1.0, FaultKind.KILL_RANK)
    _, injecting = injector(rank_kill)
    injecting.tick(101.0, status())
    assert (injecting.applied, injecting.missed) == ([], [])
    injecting.tick(101.1 + SEARCH, status())
    assert (injecting.applied, injecting.missed) == ([], [rank_kill])


def test_who_has_ended_is_not_hit(start: Callable[[], subprocess.Popen[bytes]]) -> None:
    gone, agent = start(), start()
    gone.kill()
    gone.wait()
    _, injecting = injector(Fault(1.0, FaultKind.KILL_AGENT))
    injecting.tick(101.0, status(worker("worker-0", gone.pid), worker("worker-1", agent.pid)))
    assert injecting.applied[0].workers == ("worker-1",)
