"""Losses without a word: ranks, agents and the processes that they are forked from are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec, Timing
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState
from tests.local.conftest import Start, both_engines
from tests.local.harness import ScriptedRun
from tests.local.vanishing import vanish
from tests.paced import Script, Undisturbed, has_ended, sizes_of, until

pytestmark = pytest.mark.timeout(300)

SLOW_RETURN = RecoverySpec(backoff=4.0)
"""Survivors need a twentieth of it to go on (a busy machine: a second), so the world without the lost rank is seen."""

GLOO_TIMEOUT = 30.0
"""Seconds: HOROVOD_GLOO_TIMEOUT_SECONDS by default."""


def assert_recovered(run: ScriptedRun, worlds_before: int, kills: int) -> None:
    """Three ranks were disturbed, and are three again, without having been none: a kill takes no survivor along."""
    sizes, failures = sizes_of(run.status())[worlds_before:], run.events(EventKind.RANK_FAILED, EventKind.LOST)
    assert "SIGABRT" not in run.log(), run.report("a survivor aborted")
    assert len(failures) == kills, run.report("failures")
    assert sizes == [2, 3], sizes


def await_three(run: ScriptedRun, worlds_before: int) -> None:
    run.until_status(
        lambda status: len(status.history) > worlds_before and status.world_size == 3,
        f"three ranks after {worlds_before}",
    )


@pytest.mark.shows(engine="horovod", fault="rank", place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault="rank", by="test-faults", place="local")
@both_engines
def test_killed_ranks_cost_what_came_after_the_last_commit(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", commit_every=5, holds=(23, 43)), (1, 3, 3), recovery=SLOW_RETURN)
    killed: set[str] = set()
    for kills, (step, rank) in enumerate([(23, 1), (43, 0)], start=1):
        run.at(step)
        worlds = run.trains(3)
        killed.add(run.worker(rank).name)
        os.kill(run.rank_pid(rank), signal.SIGKILL)
        await_three(run, worlds)
        assert_recovered(run, worlds, kills)
        run.go(step)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    again = {step for step, times in run.ledger().steps().items() if times > 1}
    assert again == {21, 22, 23, 41, 42, 43}
    # Horovod blacklists a host for good; its slot comes back under another name.
    members = [event.message for event in status.events if event.kind is EventKind.SCALED]
    assert all(f"{name}.0.1" in members[-1] for name in killed)
    assert run.events(EventKind.RESTARTED) == []
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="worker", place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault="worker", by="test-faults", place="local")
@both_engines
def test_a_killed_agent_is_a_lost_worker_and_another_comes(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(20, 30)), (1, 3, 3), recovery=SLOW_RETURN)
    run.at(20)
    lost = run.worker(1)
    source = psutil.Process(lost.pids[0]).parent()
    assert source is not None
    source.suspend()  # No worker can be forked: the replacement comes when we say so.
    os.kill(lost.pids[0], signal.SIGKILL)
    run.until_status(lambda status: any(size < 3 for size in sizes_of(status)[-1:]), "fewer ranks")
    source.resume()
    await_three(run, 2)
    assert_recovered(run, 1, 1)
    assert run.events(EventKind.LOST) == [f"lost {lost.name}"]
    states = {worker.name: worker.state for worker in run.status().workers}
    assert states[lost.name] is WorkerState.LOST
    run.go(20)

    run.at(30)
    robbed = run.worker(2)
    ranks_parent = psutil.Process(robbed.pids[1]).parent()
    assert ranks_parent is not None
    worlds = run.trains(3)
    ranks_parent.kill()  # The warm process of one worker: its rank goes with it, and the worker is of no use any more.
    await_three(run, worlds)
    assert run.events(EventKind.LOST) == [f"lost {lost.name}", f"lost {robbed.name}"]

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert set(run.ledger().steps()) == set(range(1, 71))
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault=("notice", "worker"), place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault=("notice", "worker"), by="test-faults", place="local")
@both_engines
def test_a_worker_that_is_killed_before_the_deadline_of_its_notice(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", freezes=(20,), holds=(25,)), (1, 3, 3), recovery=SLOW_RETURN)
    run.at(20)  # Nobody commits, so nobody leaves.
    noticed = run.worker(1)
    run.reclaim(noticed.name)
    run.until_status(lambda _: run.events(EventKind.NOTICE), "the notice")
    source = psutil.Process(noticed.pids[0]).parent()
    assert source is not None
    source.suspend()  # The replacement comes when we say so.
    os.kill(noticed.pids[0], signal.SIGKILL)
    run.until_status(lambda _: run.events(EventKind.LOST), "the loss")
    until(lambda: has_ended(noticed.pids[1]), "its rank has ended")  # Else it may yet take part in the next step.
    run.go(20)
    run.until_status(lambda status: any(size < 3 for size in sizes_of(status)[-1:]), "fewer ranks")
    source.resume()
    await_three(run, 1)
    assert_recovered(run, 1, 1)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.NOTICE, EventKind.LEFT, EventKind.LOST)[:2] == [
        *(f"notice {noticed.name}", f"lost {noticed.name}"),
    ]
    assert f"{noticed.name} was lost before its deadline" in [event.message for event in status.events]
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="all", place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault="all", by="test-faults", place="local")
@both_engines
def test_all_ranks_killed_at_once_start_again_from_the_newest_checkpoint(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=0.1)
    run = start(
        Script("exact.py", holds=(20, 40)), (1, 3, 3), checkpoint=checkpoint, recovery=RecoverySpec(backoff=0.1)
    )
    run.at(20)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 20, "a checkpoint of step 20")
    run.kill_ranks(0, 1, 2)
    run.worlds(3, 0, 3)
    run.go(20)

    run.at(40)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 40, "a checkpoint of step 40")
    source = psutil.Process(run.worker(0).pids[0]).parent()
    assert source is not None
    source.kill()  # What all agents here are forked from: all of them go with it, and so do all ranks.
    run.worlds(3, 0, 3, 0, 3)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [3, 0, 3, 0, 3, 0]
    assert run.events(EventKind.STARTED, EventKind.SCALED, EventKind.SUSPENDED, EventKind.RESTARTED) == [
        *("started 3", "suspended", "restarted", "scaled 3", "suspended", "restarted", "scaled 3"),
    ]
    resumed = [event.message.partition(" at ")[0] for event in status.events if event.kind is EventKind.RESUMED]
    assert [words for words in resumed if "checkpoint" in words] == [
        *("from the durable checkpoint of step 20", "from the durable checkpoint of step 40"),
    ]
    assert len(run.events(EventKind.RANK_FAILED)) == len(run.events(EventKind.LOST)) == 3
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


@both_engines
def test_newcomers_that_die_before_they_have_joined_harm_nobody(start: Start, undisturbed: Undisturbed) -> None:
    doors = {"worker-2": "kill", "worker-3": "exit", "worker-4": "wait"}
    run = start(Script("exact.py", holds=(10, 20, 30), doors=doors), (1, 2, 5), recovery=RecoverySpec(backoff=0.1))
    for step, size in ((10, 3), (20, 4)):
        run.at(step)
        run.resize(size)
        run.worlds(*range(2, size + 1))
        run.go(step)
    run.at(30)
    run.resize(5)
    run.at("worker-4")
    # Its rank stands before hvd.init(), the others wait for it inside theirs, and its whole worker goes.
    os.kill(run.agent_pid("worker-4"), signal.SIGKILL)
    run.until_status(lambda status: status.world_size == 5 and ranks_of(status) == set(range(5)), "five ranks")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.RESTARTED, EventKind.SUSPENDED) == []
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


def ranks_of(status: Status) -> set[int]:
    return {rank for worker in status.workers for rank in worker.ranks}


@both_engines
def test_a_run_below_its_minimum_is_suspended_and_goes_on(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(20,)), (2, 2, 2), recovery=SLOW_RETURN)
    run.at(20)
    lost = run.worker(1).name
    os.kill(run.rank_pid(1), signal.SIGKILL)
    run.until_status(lambda status: status.phase is Phase.SUSPENDED and status.world_size == 0, "suspended")
    run.worlds(2, 0, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.RANK_FAILED, EventKind.SUSPENDED, EventKind.RESUMED, EventKind.SCALED) == [
        *(f"rank_failed {lost}", "suspended", "resumed", "scaled 2"),
    ]
    undisturbed.assert_same(run)


@both_engines
def test_a_run_below_its_minimum_for_too_long_fails(start: Start) -> None:
    run = start(Script("exact.py", holds=(20,)), (2, 2, 2), recovery=RecoverySpec(backoff=60.0, max_wait=1.0))
    run.at(20)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    status = run.end()
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.MAX_WAIT_EXCEEDED)
    assert sizes_of(status) == [2, 0]
    assert "fewer than 2 ranks" in status.reason


@pytest.mark.parametrize("start", ["horovod"], indirect=True)
def test_ranks_that_are_killed_amid_messages_hold_nobody_up(start: Start) -> None:
    """Upstream, one kill in six made the others wait until Gloo gave up: see the amendment of ``images/trainer``."""
    run = start(
        *(Script("large.py", epochs=1_000_000), (1, 3, 3)),
        recovery=RecoverySpec(backoff=0.1, backoff_maximum=0.1, rank_failures=100),
        environment={"HOROVOD_FUSION_THRESHOLD": "0"},  # Several messages in each step.
    )

    def steps(size: int, begin: int) -> bool:
        return any(note["size"] == size for note in run.notes()[begin:])

    for rank in (0, 1, 2) * 4:
        run.until_status(lambda status: status.world_size == 3, "three ranks")
        begin = len(run.notes())
        run.until(lambda begin=begin: len(run.notes()) > begin + 6, "they train")  # type: ignore[misc]  # mypy#1484
        run.kill_rank(rank)
        begin = len(run.notes())
        run.until(lambda begin=begin: steps(2, begin), "the others go on", GLOO_TIMEOUT / 2)  # type: ignore[misc]


@both_engines
def test_a_machine_that_vanishes_while_all_train_is_missed_before_its_silence_is_long(start: Start) -> None:
    run = start(Script("exact.py", epochs=30, step_seconds=0.1), (1, 3, 3), timing=Timing(agent_silence=60.0))
    run.until_status(lambda status: (status.step or 0) > 5, "a few commits, by which the launcher knows their pace")
    gone = run.worker(2)
    for pid in gone.pids[::-1]:
        vanish(pid)
    vanished = time.monotonic()
    run.until_status(lambda status: sizes_of(status)[-1:] == [2], "two ranks")
    assert time.monotonic() - vanished < GLOO_TIMEOUT - 2.0
    for pid in gone.pids:
        with contextlib.suppress(ProcessLookupError):  # Its place has ended it already, as one that is silent.
            os.kill(pid, signal.SIGKILL)

    status = run.succeed()

    [lost] = [event.message for event in status.events if event.kind is EventKind.LOST]
    assert lost.startswith(f"{gone.name} was lost: its agent has been silent for ")
    assert "and no rank has committed; its processes are killed, and another worker starts" in lost
    assert set(run.ledger().steps()) == set(range(1, 211))


@pytest.mark.shows(engine="horovod", fault="worker", place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault="worker", by="test-faults", place="local")
@both_engines
def test_a_machine_that_vanishes_without_ending_its_connections(start: Start, undisturbed: Undisturbed) -> None:
    """Stock Horovod's ranks wait for it for 30 s, until Gloo gives up."""
    silence = 4.0
    run = start(Script("exact.py", holds=(20, 40)), (1, 3, 3), timing=Timing(agent_silence=silence))
    run.at(20)
    gone = run.worker(2)
    for pid in gone.pids[::-1]:
        vanish(pid)
    vanished = time.monotonic()
    run.go(20)
    run.until_status(lambda status: sizes_of(status)[-1:] == [2], "two ranks")
    assert time.monotonic() - vanished < 5 * silence < GLOO_TIMEOUT
    assert run.events(EventKind.LOST) == [f"lost {gone.name}"]
    for pid in gone.pids:
        with contextlib.suppress(ProcessLookupError):  # Its place has ended it already, as one that is silent.
            os.kill(pid, signal.SIGKILL)
    await_three(run, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert set(run.ledger().steps()) == set(range(1, 71))
    undisturbed.assert_same(run)
