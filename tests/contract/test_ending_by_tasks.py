"""The operators that end trainings, on real runs of every kind of cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from elastic_runtime.errors import FailureKind, RunNotFound
from elastic_runtime.run.status import Phase, WorkerStatus
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.operators.end_training import CancelTrainingOperator, DeleteTrainingOperator
from tests.contract.cluster_kinds import Kind, LocalKind
from tests.contract.watching import training, until
from tests.paced import has_ended
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.fakes import FakeTaskInstance

pytestmark = pytest.mark.timeout(600)
TRAINING = FakeTaskInstance("train", dag_id="models")


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training's task is over."""
    return FakeAirflow({"models": {TRAINING.run_id: {"train": "failed"}}}).install(monkeypatch)


def end(kind: type[CancelTrainingOperator]) -> str | None:
    task = kind(task_id="end", training_task_id="train", training_dag_id="models", timeout=120)
    return task.execute({"ti": FakeTaskInstance("end")})


def assert_over(kind: Kind, workers: Iterable[WorkerStatus]) -> None:
    """Where they are processes of this machine, these are gone."""
    if isinstance(kind, LocalKind):
        assert all(has_ended(pid) for each in workers for pid in each.pids)


@pytest.mark.long_in_pods
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled before", "living"])
def test_a_training_that_was_ended_computes_no_more_and_one_that_was_deleted_is_gone(
    kind: Kind, cancelled: bool
) -> None:
    ref = run(kind.cluster.claim(kind.spec(start=2), Owner.of(TRAINING).text())).ref
    workers = until(kind, ref, training(2)).workers
    with substituted("local", kind.cluster):
        if cancelled:
            assert [end(CancelTrainingOperator), end(CancelTrainingOperator)] == [ref.name, ref.name]
            status = run(kind.cluster.status(ref))
            assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.CANCELLED)
            assert_over(kind, workers)
        assert [end(DeleteTrainingOperator), end(DeleteTrainingOperator)] == [ref.name, None]
    with pytest.raises(RunNotFound):
        run(kind.cluster.find(ref.name))
    assert_over(kind, workers)
