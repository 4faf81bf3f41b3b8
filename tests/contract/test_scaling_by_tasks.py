"""The sensor and the operator that scale, on real runs of every kind of cluster: 2 → 4 → 3 → "+1" → a named worker."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.run.status import Status, WorkerState
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.operators.scale_training import ScaleTrainingOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from tests.contract.cluster_kinds import Kind, LocalKind
from tests.contract.watching import training, until
from tests.paced import has_ended
from tests.paced import until as await_that
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.fakes import FakeTaskInstance

pytestmark = pytest.mark.timeout(600)
TRAINING = FakeTaskInstance("train", dag_id="models")
PLACE = {"training_task_id": "train", "training_dag_id": "models", "deferrable": False, "timeout": 120}


def present(status: Status) -> dict[str, tuple[int, ...]]:
    """Process ids by worker."""
    return {each.name: each.pids for each in status.workers if each.state is WorkerState.TRAINING}


def test_each_wish_is_reached_and_who_goes_is_gone(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeAirflow({"models": {"any": {"train": "running"}}}).install(monkeypatch)
    ref = run(kind.cluster.claim(kind.spec(start=2, maximum=5), Owner.of(TRAINING).text())).ref
    before = present(until(kind, ref, training(2)))

    def reached(task: type, number: int, size: int, **wish: Any) -> dict[str, tuple[int, ...]]:
        more = task(task_id=f"scale-{number}", poke_interval=0.1, **PLACE, **wish)
        result = more.execute({"ti": FakeTaskInstance(more.task_id)})
        assert (result["workers"], result["world_size"]) == (size, size)
        print(f"{type(kind).__name__}: {wish} in {result['seconds']:.2f} s")  # seen with pytest -s
        found = present(run(kind.cluster.status(ref)))
        assert len(found) == size
        if isinstance(kind, LocalKind):
            gone = [pid for name, pids in before.items() if name not in found for pid in pids]
            await_that(lambda: all(map(has_ended, gone)), f"ends of {gone}")
        before.clear()
        before.update(found)
        return found

    with substituted("local", kind.cluster):
        reached(ScaleWorkersSensor, 1, 4, workers=4)
        reached(ScaleWorkersSensor, 2, 3, workers=3)
        names = reached(ScaleTrainingOperator, 3, 4, workers="+1")
        victim = sorted(names)[0]
        left = reached(ScaleWorkersSensor, 4, 3, release=[victim])
    assert set(left) == set(names) - {victim}
    kind.finish(ref)
