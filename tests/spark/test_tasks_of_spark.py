"""Workers as tasks: sizes, decommissioning, loss, and what Spark says of tasks that do not run."""

from __future__ import annotations

import os
import signal

import pytest

from elastic_runtime.run.join import JoinSpec
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind, Status
from tests.joined_machine import trains_and_leaves
from tests.paced import Script, Undisturbed, sizes_of, until
from tests.spark.conftest import Start
from tests.spark_run import SparkRun
from tests.unit.runtime.join_bench import free_port

pytestmark = pytest.mark.timeout(400)

SLOW = Script("exact.py", holds=(20, 40), step_seconds=0.1)


@pytest.mark.shows(engine="horovod", fault="resize", place="spark")
def test_another_size_is_another_number_of_tasks_and_the_same_training(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 2, 3))
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


def noticed(status: Status, worker: str) -> bool:
    return any(event.kind is EventKind.NOTICE and event.worker == worker for event in status.events)


@pytest.mark.timeout(900)
@pytest.mark.shows(engine="horovod", fault="notice", place="spark")
def test_executors_that_are_decommissioned_ten_times_cost_no_step(start: Start, undisturbed: Undisturbed) -> None:
    holds = range(3, 61, 3)
    run = start(Script("exact.py", holds=tuple(holds)), (1, 2, 2), recovery=RecoverySpec(backoff=0.1))
    gone: list[str] = []
    for number in range(10):
        before, after = holds[2 * number], holds[2 * number + 1]
        run.at(before)
        taken = run.worker(1).name
        with run.decommissioned(taken):
            run.until_status(lambda status, taken=taken: noticed(status, taken), f"the notice of {taken}")
            run.go(before)
            run.at(after)
            gone.append(taken)
            run.until_status(
                lambda status: any(each.name not in gone and not each.ranks for each in status.workers), "another one"
            )
        run.go(after)

    run.succeed()

    assert run.events(EventKind.LOST) == []
    assert run.ledger().steps() == dict.fromkeys(range(1, 71), 1), "a step was lost, and done again"
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="worker", place="spark")
def test_a_worker_that_is_killed_is_a_loss_and_another_one_comes(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 2, 2), recovery=RecoverySpec(backoff=0.1))
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


@pytest.mark.shows(engine="horovod", fault="worker", place="spark")
def test_an_executor_that_is_killed_is_a_loss_and_its_task_does_not_come_again(
    start: Start, undisturbed: Undisturbed
) -> None:
    run = start(SLOW, (1, 2, 2), recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    lost = run.worker(1).name
    run.node_of(lost).executor.kill()
    run.until_status(lambda _: run.events(EventKind.LOST), "the loss")
    run.go(20)
    run.until_status(lambda status: any(each.name == "worker-2" for each in status.workers), "another worker")
    run.go(40)

    run.succeed()

    assert run.events(EventKind.LOST) == [f"lost {lost}"]
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="all", place="spark")
def test_a_driver_that_is_killed_takes_its_workers_and_another_one_comes(
    start: Start, undisturbed: Undisturbed
) -> None:
    run = start(SLOW, (1, 2, 2), recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    os.kill(run.driver_pid(), signal.SIGKILL)
    run.until_status(lambda _: len(run.events(EventKind.LOST)) == 2, "both are lost")
    run.go_on()

    run.succeed()

    undisturbed.assert_same(run)


def test_why_a_task_does_not_run_is_said(start: Start) -> None:
    run = start(SLOW, (1, 1, 6))
    run.at(20)
    run.resize(6)
    told = "its cluster has no free executor with 4 CPUs"
    run.until_status(lambda status: any(told in event.message for event in status.events), "the reason")
    run.resize(1)
    run.succeed()


def test_a_launcher_that_is_killed_leaves_nothing(start: Start) -> None:
    run: SparkRun = start(SLOW, (1, 2, 2))
    run.at(20)

    run.launcher.kill()

    until(run.is_over, "the launcher is gone")
    run.assert_no_process(60.0)


def test_a_machine_joins_by_hand_and_leaves_with_no_step_lost(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SLOW, (1, 1, 2), engine="torch", join=JoinSpec(port=free_port()))
    trains_and_leaves(run, undisturbed)
