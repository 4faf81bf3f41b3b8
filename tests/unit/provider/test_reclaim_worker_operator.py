from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import EventKind
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.identity.naming import run_name
from elastic_training.operators.reclaim_worker import ReclaimWorkerOperator
from tests.unit.provider.fakes import FakeTaskInstance

TI = FakeTaskInstance("less")
NAME = run_name(TI.dag_id, TI.run_id, "train")


def drill(**more: Any) -> Any:
    return ReclaimWorkerOperator(task_id="less", training_task_id="train", **more).execute({"ti": TI})


def train(cluster: FakeCluster) -> RunRef:
    spec = RunSpec(name=NAME, uid="1", command=("python",), workers=WorkersSpec(1, 3, 4))
    return run(cluster.claim(spec, "the training")).ref


def test_the_newest_worker_is_told_and_leaves(fake: FakeCluster) -> None:
    ref = train(fake)
    ages = {"worker-0": 90.0, "worker-1": 5.0, "worker-2": 60.0}
    fake.publish(NAME, workers=tuple(replace(w, seconds=ages[w.name]) for w in run(fake.status(ref)).workers))
    assert drill() == "worker-1"
    status = run(fake.status(ref))
    assert status.world_size == 2
    assert EventKind.NOTICE in {event.kind for event in status.events}


def test_a_named_worker_is_told(fake: FakeCluster) -> None:
    train(fake)
    assert drill(worker="worker-2", grace=5) == "worker-2"


def test_nobody_of_that_name(fake: FakeCluster) -> None:
    train(fake)
    with pytest.raises(AirflowFailException, match="worker-9"):
        drill(worker="worker-9")


def test_nobody_trains(fake: FakeCluster) -> None:
    with substituted("local", idle := FakeCluster(automatic=False)):
        train(idle)
        with pytest.raises(AirflowFailException, match="no worker of the run"):
            drill()


def test_no_such_run_can_be_retried(fake: FakeCluster) -> None:
    with pytest.raises(RunNotFound):
        drill()


def test_a_worker_that_stays_fails_the_drill(fake: FakeCluster) -> None:
    with substituted("local", stuck := FakeCluster(automatic=False)):
        train(stuck)
        stuck.train(NAME, 2)
        with pytest.raises(AirflowException, match="has not left within"):
            drill(grace=0.05, timeout=0.05)


def test_a_training_that_ends_first_fails_the_drill(fake: FakeCluster) -> None:
    with substituted("local", slow := FakeCluster(automatic=False)):
        train(slow)
        slow.train(NAME, 2)
        slow.script(lambda: slow.succeed(NAME))
        with pytest.raises(AirflowException, match="succeeded"):
            drill()


@pytest.mark.parametrize("settings", [{"grace": 0}, {"timeout": -1}, {"cluster": "moon/"}])
def test_what_cannot_work_is_refused_at_parse(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        ReclaimWorkerOperator(task_id="less", training_task_id="train", **settings)
