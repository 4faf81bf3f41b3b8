"""Engines, sharded states, static scripts and shards, whose losses other tests show on one machine: in pods."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from elastic_runtime.run.status import EventKind
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import Place, PodRun
from tests.kubernetes_reclaims.test_reclaims import ALL_ONCE, tainted
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

SLOW_RETURN = RecoverySpec(backoff=4.0)
"""So that the world without the lost rank is seen."""
PER_STEP, STEPS = 12, 20


def resize(run: PodRun, step: int, size: int) -> None:
    """While the run stands at that step; it goes on in the new world."""
    run.at(step)
    run.resize(size)
    run.trains(size)
    run.go(step)


@pytest.mark.shows(engine=("torch", "torch-sharded"), fault=("resize", "rank", "notice"), place="kubernetes")
@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"IN_PLACE": "1"}, id="torch-in-place"),
        pytest.param({"SHARDED": "1"}, id="sharded"),
        pytest.param({"SHARDED": "1", "IN_PLACE": "1"}, id="sharded-in-place"),
    ],
)
def test_torch_keeps_its_weights_through_resizes_a_killed_rank_and_a_taint(
    start: Start, place: Place, undisturbed: Undisturbed, environment: dict[str, str]
) -> None:
    script = Script("exact.py", holds=(10, 20, 30, 40, 50))
    run = start(script, (1, 2, 3), engine="torch", recovery=SLOW_RETURN, environment=environment)
    resize(run, 10, 3)
    resize(run, 20, 2)

    run.at(30)
    run.kill_rank(1)
    run.until_status(lambda status: sizes_of(status)[3:] == [1, 2], "one rank, and two again")
    run.go(30)

    run.at(40)
    leaving = run.worker(1)
    with tainted(place.namespace, leaving.node):
        run.until_status(lambda _: leaving.name not in run.present(), "the noticed worker has left")
        run.trains(2)
        run.go(40)
        run.at(50)
        status = run.finish()

    assert [event.split()[0] for event in run.events(EventKind.RANK_FAILED, EventKind.LOST)] == ["rank_failed"]
    assert f"notice {leaving.name}" in run.events(EventKind.NOTICE), "beside those of workers that a smaller size ends"
    assert run.events(EventKind.RESTARTED) == []
    assert sizes_of(status)[:5] == [2, 3, 2, 1, 2]
    assert set(run.ledger().steps().items()) == ALL_ONCE, "all steps were committed before what happened"
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="torch-sharded", fault="worker", place="kubernetes")
def test_a_killed_pod_of_a_sharded_training_is_made_up_for_by_its_neighbour(
    start: Start, undisturbed: Undisturbed
) -> None:
    """Its part of the state is nowhere but in another pod's memory: there is no checkpoint."""
    script = Script("exact.py", holds=(20,))
    run = start(script, (1, 3, 3), engine="torch", recovery=SLOW_RETURN, environment={"SHARDED": "1"})
    run.at(20)
    lost = run.worker(1).name
    run.kill_worker(lost)
    run.until_status(lambda status: len(status.history) > 1 and status.world_size == 3, "three ranks again")
    assert lost not in run.present()

    run.finish()

    assert run.events(EventKind.RESTARTED) == []
    assert set(run.ledger().steps().items()) == ALL_ONCE
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovodrun", fault="resize", place="kubernetes")
def test_a_static_script_for_horovodrun_goes_on_from_its_checkpoint_in_each_world(start: Start) -> None:
    script = Script("restarting_horovod.py", epochs=2, holds=(4, 8))
    run = start(script, (1, 2, 3), engine="horovodrun", restart=RestartSpec(grace=5.0), recovery=SLOW_RETURN)
    resize(run, 4, 3)
    run.at(8)
    run.resize(2)
    run.trains(2)

    status = run.finish()

    assert sizes_of(status) == [2, 3, 2, 0]
    assert run.ledger().steps() == dict.fromkeys(range(1, 15), 1)
    assert run.events(EventKind.WARNING) == []


@pytest.mark.shows(engine="horovodrun", fault=("resize", "rank"), place="kubernetes")
def test_a_killed_rank_of_a_static_script_for_horovodrun_goes_back_to_its_checkpoint(start: Start) -> None:
    script = Script("restarting_horovod.py", epochs=2, holds=(4, 8))
    run = start(script, (1, 2, 3), engine="horovodrun", restart=RestartSpec(grace=5.0), recovery=SLOW_RETURN)
    resize(run, 4, 3)  # Writes the checkpoint of step 4.
    run.at(8)
    run.kill_rank(1)
    run.until_status(lambda status: sizes_of(status)[-1:] == [3] and len(status.history) > 2, "three ranks again")

    run.finish()

    steps = run.ledger().steps()
    assert set(steps) == set(range(1, 15))
    assert {step for step, times in steps.items() if times > 1} == {5, 6, 7, 8}


@pytest.mark.shows(engine=("torch-shards", "horovod-shards"), fault="worker", place="kubernetes")
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_each_shard_is_committed_once_though_a_pod_is_killed(start: Start, engine: str) -> None:
    environment = {"SHARDS": json.dumps([PER_STEP * STEPS, PER_STEP, 0.0, "shards"])}
    script = Script("counted.py", freezes=(5,), holds=(10,))
    run = start(script, (1, 3, 3), engine=engine, recovery=SLOW_RETURN, environment=environment)
    run.at(5)
    worlds = run.trains(3)
    run.until(lambda: taken(run)[5 + 1] == PER_STEP, "two ranks have all shards of the step, and wait for the first")
    run.kill_worker(run.worker(1).name)
    run.go(5)
    run.until_status(lambda status: len(status.history) > worlds and status.world_size == 3, "three ranks again")
    run.at(10)

    run.finish()

    ends: list[Any] = [note["counts"] for note in run.notes() if "counts" in note]
    assert ends == [[1] * PER_STEP * STEPS] * 3
    # A kubelet says SIGTERM for two seconds also to a pod that is deleted by force: the rank may finish its step.
    begun = taken(run)
    assert begun.pop(5 + 1) in (PER_STEP, 2 * PER_STEP), "the step whose shards the lost rank had was done again"
    assert set(begun.values()) == {PER_STEP}, "and no other"


def taken(run: PodRun) -> Counter[int]:
    """Step to how many shards ranks have begun to train on in it."""
    return Counter(note["step"] for note in run.notes() if "took" in note)
