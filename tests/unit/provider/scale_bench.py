"""What the tests of the sensor and the operator that scale a training share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.identity.naming import run_name
from elastic_training.identity.ownership import Owner
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.triggers.world_size import WorldSizeTrigger
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.virtual_time import run_virtually

TI = FakeTaskInstance("more")
NAME = run_name(TI.dag_id, TI.run_id, "train")
DATE = datetime(2026, 11, 21, tzinfo=UTC)


def train(cluster: FakeCluster, slots: int = 1, uid: str = "1", **ids: Any) -> RunRef:
    """A training run of 1 to 4 workers, which begins with 2."""
    task = FakeTaskInstance("train", **ids)
    name = run_name(task.dag_id, task.run_id, "train")
    spec = RunSpec(name=name, uid=uid, command=("python",), workers=WorkersSpec(1, 2, 4, slots))
    return run(cluster.claim(spec, Owner.of(task).text())).ref


def context(**more: Any) -> dict[str, Any]:
    """Of the task that scales."""
    return {"ti": FakeTaskInstance("more", **more), "logical_date": DATE}


def trigger_of(task: Any, **more: Any) -> WorldSizeTrigger:
    """With which it defers, as it comes out of Airflow's database."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context(**more))
    trigger = caught.value.trigger
    assert isinstance(trigger, WorldSizeTrigger)
    return WorldSizeTrigger(**trigger.serialize()[1])


def outcome_of(trigger: WorldSizeTrigger) -> Any:
    """Its one event's payload."""

    async def first() -> Any:
        return [event.payload async for event in trigger.run()]

    (payload,) = run_virtually(first())
    return payload


def sensor(**more: Any) -> ScaleWorkersSensor:
    """Asks for three workers, or for what is said."""
    settings: dict[str, Any] = {"training_task_id": "train", "workers": 3, "deferrable": False}
    if "release" in more:
        settings.pop("workers")
    return ScaleWorkersSensor(task_id="more", **(settings | more))


def done(more: ScaleWorkersSensor, **about: Any) -> bool:
    """Whether one look of the sensor says so."""
    return bool(more.poke(context(**about)))
