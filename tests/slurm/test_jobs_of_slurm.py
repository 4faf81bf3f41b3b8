"""Launcher and workers as jobs: sizes, preemption, loss, and what Slurm says of jobs that do not run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_runtime.run.jobs import LAUNCHER
from elastic_runtime.run.join import JoinSpec
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.joined_machine import trains_and_leaves
from tests.local.test_reclaims import on_notice_only
from tests.paced import Script, Undisturbed, has_ended, sizes_of, until
from tests.slurm.conftest import Start
from tests.slurm_run import SlurmRun
from tests.unit.runtime.join_bench import free_port

pytestmark = pytest.mark.timeout(400)

ROUNDS = int(os.environ.get("ROUNDS") or 1)
"""Preempted jobs. Each takes a minute."""
SLOW = Script("exact.py", holds=(20, 40), step_seconds=0.1)


@pytest.mark.shows(engine="horovod", fault="resize", place="slurm")
def test_another_size_is_another_number_of_jobs_and_the_same_training(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 2, 3))
    run.at(20)
    assert run.jobs().keys() == {LAUNCHER, "worker-0", "worker-1"}
    run.resize(3)
    run.go(20)
    run.at(40)
    run.worlds(2, 3)
    run.resize(2)
    run.go(40)

    status = run.succeed()

    assert sizes_of(status)[:3] == [2, 3, 2]
    assert run.events(EventKind.LOST) == []
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="notice", place="slurm")
@pytest.mark.parametrize("_time", range(ROUNDS))
def test_a_preempted_job_loses_no_step_and_comes_back(start: Start, undisturbed: Undisturbed, _time: int) -> None:
    run = start(SLOW, (1, 2, 2), recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    taken, pid = run.worker(1).name, run.rank_pid(1)
    other = run.take_node_of(1)
    run.until_status(lambda _: run.events(EventKind.NOTICE), "the notice")
    assert not has_ended(pid), "Slurm's SIGTERM, which its rank got, too, has ended it"
    run.go(20)
    run.worlds(2, 1)
    run.commands.cancel([other])
    run.go(40)

    status = run.succeed()

    assert run.events(EventKind.LEFT)[0] == f"left {taken}"
    assert run.events(EventKind.LOST) == []
    assert sizes_of(status)[:2] == [2, 1]
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}, "no step is lost"
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="worker", place="slurm")
def test_a_worker_that_is_killed_is_a_loss_and_another_one_comes(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 2, 2), recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    lost = run.worker(1).name
    os.kill(run.agent_pid(lost), signal.SIGKILL)
    run.until_status(lambda _: run.events(EventKind.LOST), "the loss")
    run.go(20)
    run.until(lambda: "worker-2" in run.jobs(), "another job")
    run.go(40)

    run.succeed()

    assert run.events(EventKind.LOST) == [f"lost {lost}"]
    undisturbed.assert_same(run)


def test_why_a_job_does_not_run_is_said(start: Start) -> None:
    run = start(SLOW, (1, 1, 6))
    run.at(20)
    run.resize(6)
    told = "Slurm has not started it yet (Resources: nodes are in use)"
    run.until_status(lambda status: any(told in event.message for event in status.events), "the reason")
    run.resize(1)
    run.until(lambda: run.jobs().keys() == {LAUNCHER, "worker-0"}, "the queue is empty again")
    assert run.succeed().phase is Phase.SUCCEEDED


@pytest.mark.shows(engine="horovod", fault="launcher", place="slurm")
def test_a_launcher_that_is_taken_hands_over(start: Start, tmp_path: Path) -> None:
    class Preempted(SlurmRun):
        launchers = "low"

    run = start(SLOW, (1, 1, 1), kind=Preempted, checkpoint=on_notice_only(tmp_path))
    run.at(20)
    run.commands.cancel([run.jobs()[LAUNCHER].id], "TERM")
    run.go(20)
    run.until(run.is_over, "the launcher's job is over", alive=False)

    status = run.status()

    assert not status.phase.final, "so that the place reports a lost launcher, and the task's next try resumes"
    assert status.checkpoint is not None
    assert status.checkpoint.step >= 20
    until(lambda: not run.jobs(), "no job is left", 60.0)


@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_a_machine_joins_by_hand_and_leaves_with_no_step_lost(
    start: Start, undisturbed: Undisturbed, engine: str
) -> None:
    run = start(SLOW, (1, 1, 2), engine=engine, join=JoinSpec(port=free_port()))
    trains_and_leaves(run, undisturbed)
