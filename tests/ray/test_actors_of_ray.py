"""Launcher as a job, workers as actors: sizes, drained nodes, loss, and what Ray says of actors that do not run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.ray.jobs import job_id
from elastic_runtime.run.join import JoinSpec
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.joined_machine import trains_and_leaves
from tests.local.test_reclaims import on_notice_only
from tests.paced import Script, Undisturbed, sizes_of
from tests.ray.conftest import Start
from tests.ray_run import SharingRun
from tests.unit.runtime.join_bench import free_port

pytestmark = pytest.mark.timeout(400)

ROUNDS = int(os.environ.get("ROUNDS") or 1)
"""Drained nodes. Each takes a minute."""
SLOW = Script("exact.py", holds=(20, 40), step_seconds=0.1)


@pytest.mark.shows(engine="horovod", fault="resize", place="ray")
def test_another_size_is_another_number_of_actors_and_the_same_training(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 2, 3), kind=SharingRun)
    run.at(20)
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


@pytest.mark.shows(engine="horovod", fault="notice", place="ray")
@pytest.mark.usefixtures("all_nodes")
@pytest.mark.parametrize("_time", range(ROUNDS))
def test_a_drained_node_loses_no_step_and_its_worker_is_replaced(
    start: Start, undisturbed: Undisturbed, _time: int
) -> None:
    run = start(SLOW, (1, 2, 2), kind=SharingRun, recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    taken = run.worker(1).name
    node = run.node_of(taken)
    run.drain(node)
    run.until_status(lambda _: run.events(EventKind.NOTICE), "the notice")
    run.go(20)
    run.until_status(lambda _: run.events(EventKind.LEFT), "it has left")
    run.go(40)

    run.succeed()

    assert taken in "".join(run.events(EventKind.LEFT))
    assert run.events(EventKind.LOST) == []
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="worker", place="ray")
def test_a_worker_that_is_killed_is_a_loss_and_another_one_comes(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 2, 2), kind=SharingRun, recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    lost = run.worker(1).name
    os.kill(run.agent_pid(lost), signal.SIGKILL)
    run.until_status(lambda _: run.events(EventKind.LOST), "the loss")
    run.go(20)
    run.until_status(lambda status: any(each.name == "worker-2" for each in status.workers), "another worker")
    run.go(40)

    run.succeed()

    assert run.events(EventKind.LOST) == [f"lost {lost}"]
    undisturbed.assert_same(run)


def test_what_no_node_has_is_said_with_what_helps_and_is_withdrawn(start: Start) -> None:
    class Greedy(SharingRun):
        demands = {"num_cpus": 1, "resources": {"spot": 3}}  # noqa: RUF012  # read only

    run = start(SLOW, (1, 1, 6), kind=Greedy)
    run.at(20)
    run.resize(6)
    told = "Ray has not started it yet (its resources are in use"
    run.until_status(lambda status: any(told in event.message for event in status.events), "the reason")
    run.resize(1)
    assert run.succeed().phase is Phase.SUCCEEDED


def test_a_resource_that_no_node_has_is_named(start: Start) -> None:
    class Hopeless(SharingRun):
        demands = {"num_cpus": 1, "resources": {"tpu": 8}}  # noqa: RUF012  # read only

    run = start(SLOW, (1, 1, 1), kind=Hopeless)
    told = "Ray cannot place it: no node has 1 CPU, 8 tpu. Ask for less in Ray(...), or add such a node"
    run.until_status(lambda status: told in status.reason, "the reason")
    run.folder.ask_to_end("the test is over")
    assert run.end().failure is FailureKind.CANCELLED


@pytest.mark.shows(engine="horovod", fault="launcher", place="ray")
def test_a_launcher_that_is_taken_hands_over(start: Start, tmp_path: Path) -> None:
    run = start(SLOW, (1, 1, 1), kind=SharingRun, checkpoint=on_notice_only(tmp_path))
    run.at(20)
    run.jobs.stop(job_id(run.spec))
    run.go(20)
    run.until(run.is_over, "the launcher's job is over", alive=False)

    status = run.status()

    assert not status.phase.final, "so that the place reports a lost launcher, and the task's next try resumes"
    assert status.checkpoint is not None
    assert status.checkpoint.step >= 20


def test_a_machine_joins_by_hand_and_leaves_with_no_step_lost(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 1, 2), engine="torch", join=JoinSpec(port=free_port()))
    trains_and_leaves(run, undisturbed)
