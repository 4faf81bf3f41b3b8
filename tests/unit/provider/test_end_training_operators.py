from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.status import Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.operators.end_training import CancelTrainingOperator, DeleteTrainingOperator
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.operator_bench import operator
from tests.unit.provider.scale_bench import NAME, train

Operator = type[CancelTrainingOperator]
BOTH = pytest.mark.parametrize("kind", [CancelTrainingOperator, DeleteTrainingOperator])


def end(kind: Operator, **more: Any) -> str | None:
    return kind(task_id="end", **({"training_task_id": "train"} | more)).execute({"ti": FakeTaskInstance("end")})


@pytest.fixture
def slow() -> Iterator[FakeCluster]:
    """A cluster in which only the test makes things happen."""
    with substituted("local", cluster := FakeCluster(automatic=False)):
        yield cluster


def test_a_cancelled_training_has_ended_and_stays(fake: FakeCluster) -> None:
    ref = train(fake)
    assert end(CancelTrainingOperator) == NAME
    status = run(fake.status(ref))
    assert status.phase is Phase.FAILED
    assert "task end" in status.reason


def test_a_deleted_training_is_gone(fake: FakeCluster) -> None:
    train(fake)
    assert end(DeleteTrainingOperator) == NAME
    assert NAME not in fake.runs


@BOTH
def test_without_a_run_there_is_nothing_to_do(fake: FakeCluster, kind: Operator) -> None:
    assert end(kind) is None
    assert end(kind, training_dag_id="hourly") is None
    train(fake)
    assert [end(kind), end(kind)] == [NAME, NAME if kind is CancelTrainingOperator else None]


def test_a_result_that_nobody_has_taken_is_still_there(fake: FakeCluster) -> None:
    train(fake)
    fake.succeed(NAME)
    end(CancelTrainingOperator)
    assert fake.named(NAME).document.cancelled is None
    assert fake.named(NAME).status.phase is Phase.SUCCEEDED


def test_another_dags_latest_training(fake: FakeCluster) -> None:
    ref = train(fake, dag_id="hourly")
    assert end(CancelTrainingOperator, training_dag_id="hourly") == ref.name


def test_a_new_try_that_adopts_it_meanwhile_does_not_save_it(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(fake)
    owners = iter([Owner.of(FakeTaskInstance("train", try_number=7)).text()])
    real = fake.owner

    async def owner(ref: Any) -> str:
        return next(owners, None) or await real(ref)

    monkeypatch.setattr(fake, "owner", owner)
    end(CancelTrainingOperator)
    assert fake.named(NAME).status.phase is Phase.FAILED


def test_one_that_does_not_end_fails_the_task(slow: FakeCluster) -> None:
    train(slow)
    slow.train(NAME, 2)
    with pytest.raises(AirflowException, match=f"{NAME} has not ended within"):
        end(DeleteTrainingOperator, timeout=0.05)
    assert NAME in slow.runs


@BOTH
def test_what_cannot_work_is_refused(fake: FakeCluster, kind: Operator) -> None:
    for bad in ({"cluster": "moon/"}, {"timeout": -1}, {"kubernetes_conn_id": "kubernetes"}):
        with pytest.raises(InvalidSettings):
            end(kind, **bad)
    with pytest.raises(AirflowFailException, match="map_index"):
        end(kind, map_index="{{ none }}")


@BOTH
def test_as_a_teardown(kind: Operator) -> None:
    with DAG("nightly", schedule=None) as dag:
        training = operator()
        behind = kind(task_id="behind", training_task_id="train").as_teardown(setups=training)
        after = kind(task_id="after", training_task_id="train").as_teardown()
        training >> after
    dag.check_cycle()
    assert training.is_setup
    for each in (behind, after):
        assert each.is_teardown
        assert not each.on_failure_fail_dagrun
        assert each.upstream_task_ids == {"train"}
        assert each.trigger_rule == "all_done_setup_success"
