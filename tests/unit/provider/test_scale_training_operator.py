from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.operators.scale_training import ScaleTrainingOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.scale_bench import NAME, TI, context, outcome_of, train, trigger_of


def scale(**more: Any) -> ScaleTrainingOperator:
    settings: dict[str, Any] = {"training_task_id": "train", "workers": "+1", "deferrable": False}
    return ScaleTrainingOperator(task_id="more", **(settings | more))


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training's task runs."""
    return FakeAirflow({TI.dag_id: {TI.run_id: {"train": "running"}}}).install(monkeypatch)


@pytest.fixture
def slow() -> Iterator[FakeCluster]:
    """A cluster in which only the test makes things happen."""
    with substituted("local", cluster := FakeCluster(automatic=False)):
        yield cluster


def test_it_has_the_sensors_fields() -> None:
    assert tuple(ScaleTrainingOperator.template_fields) == tuple(ScaleWorkersSensor.template_fields)
    with pytest.raises(InvalidSettings, match="workers"):
        scale(workers="plenty")
    with pytest.raises(InvalidSettings, match="timeout"):
        scale(timeout=-1)


def test_it_waits_for_the_world(slow: FakeCluster) -> None:
    ref = train(slow)
    slow.train(NAME, 2)
    slow.script(lambda: slow.train(NAME, slow.named(NAME).size))
    result = scale().execute(context())
    assert (result["workers"], result["world_size"]) == (3, 3)
    assert run(slow.size(ref)) == 3


def test_or_only_until_it_has_asked(slow: FakeCluster) -> None:
    ref = train(slow)
    slow.train(NAME, 2)
    result = scale(wait=False).execute(context())
    assert (result["workers"], result["world_size"], result["seconds"]) == (3, None, None)
    assert run(slow.size(ref)) == 3


def test_deferred(slow: FakeCluster) -> None:
    more = scale(deferrable=True)
    trigger = trigger_of(more)
    train(slow)
    slow.train(NAME, 2)
    slow.script(lambda: slow.train(NAME, slow.named(NAME).size))
    assert more.execute_complete(context(), outcome_of(trigger))["world_size"] == 3


def test_what_becomes_of_it(fake: FakeCluster, airflow: FakeAirflow) -> None:
    with pytest.raises(AirflowSensorTimeout):
        scale(timeout=0.01).execute(context())
    with pytest.raises(AirflowFailException, match="Do you mean"):
        scale(training_task_id="trian").execute(context())
    airflow.dags[TI.dag_id][TI.run_id]["train"] = "upstream_failed"
    with pytest.raises(AirflowException, match="upstream_failed") as caught:
        scale().execute(context())
    assert type(caught.value) is AirflowException
    with pytest.raises(AirflowSkipException):
        scale(if_finished="skip").execute(context())
