"""An ElasticHorovodOperator, its tries, and its run in a cluster that is a fake."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from elastic_training.clusters.fake import FakeCluster, FakeRun
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.identity.naming import run_name
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Workers
from tests.unit.provider.fakes import FakeTaskInstance


def operator(**more: Any) -> ElasticHorovodOperator:
    settings: dict[str, Any] = {"command": ["python", "train.py"], "workers": Workers(min=1, start=2, max=4)}
    return ElasticHorovodOperator(**(settings | {"task_id": "train", "deferrable": False, "retries": 1} | more))


def trying(number: int = 1, **more: Any) -> FakeTaskInstance:
    return FakeTaskInstance("train", try_number=number, **more)


NAME = run_name("nightly", trying().run_id, "train")


def run_in(fake: FakeCluster) -> FakeRun:
    return fake.runs[NAME]


def told(task_instance: FakeTaskInstance) -> dict[str, Any]:
    """The XComs that it has pushed, without those of its buttons, which differ between Airflow's versions."""
    return {key: each for key, each in task_instance.pushed.items() if not key.endswith("_link")}


def ref_in(fake: FakeCluster) -> RunRef:
    return run(fake.find(NAME))


def deferred(operator: ElasticHorovodOperator, ti: FakeTaskInstance) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator.execute({"ti": ti})
    return caught.value
