from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException

from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.run.status import Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner
from elastic_training.operators import end_training
from elastic_training.operators.end_training import CancelTrainingOperator, DeleteTrainingOperator
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.operator_bench import operator
from tests.unit.provider.scale_bench import NAME, TI, train

Operator = type[CancelTrainingOperator]
BOTH = pytest.mark.parametrize("kind", [CancelTrainingOperator, DeleteTrainingOperator])


class Airflow(FakeAirflow):
    """In which something happens at each look."""

    steps: Sequence[Callable[[], object]] = ()

    def states(self, *asked: Any) -> Mapping[str, Mapping[str, str | None]]:
        if self.steps:
            step, *self.steps = self.steps
            step()
        return super().states(*asked)

    def become(self, state: str | None) -> None:
        """Of the training's task."""
        self.dags[TI.dag_id] = {TI.run_id: {"train": state}}


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """In which the training's task is over."""
    monkeypatch.setattr(end_training, "_BEAT", 0.01)
    airflow = Airflow({TI.dag_id: {TI.run_id: {"train": "failed"}}})
    airflow.install(monkeypatch)
    return airflow


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


class TestBetweenTwoTries:
    """The run has failed by itself, and its task may train again."""

    def begin(self, airflow: Airflow, fake: FakeCluster, **ids: Any) -> None:
        """The next try, with a new run."""
        train(fake, uid="2", **ids)
        airflow.dags[ids.get("dag_id", TI.dag_id)] = {ids.get("run_id", TI.run_id): {"train": "running"}}

    @pytest.fixture(autouse=True)
    def failed(self, fake: FakeCluster, airflow: Airflow) -> None:
        train(fake)
        fake.fail(NAME, FailureKind.RANK_FAILED, "it was a bad day")
        airflow.become("up_for_retry")

    def test_the_next_run_is_ended(self, fake: FakeCluster, airflow: Airflow) -> None:
        airflow.steps = [lambda: None, lambda: airflow.become("running"), lambda: self.begin(airflow, fake)]
        assert end(CancelTrainingOperator) == NAME
        assert (fake.named(NAME).spec.uid, fake.named(NAME).status.failure) == ("2", FailureKind.CANCELLED)

    def test_also_if_the_first_goes_on_without_a_try_of_the_task(self, fake: FakeCluster, airflow: Airflow) -> None:
        """Whose worker was lost, so that the next try takes the cancelled run for one that has ended."""
        train(fake, uid="1b")
        airflow.steps = [lambda: None, lambda: self.begin(airflow, fake)]
        assert end(CancelTrainingOperator) == NAME
        assert (fake.named(NAME).spec.uid, fake.named(NAME).status.failure) == ("2", FailureKind.CANCELLED)

    def test_also_if_the_task_has_deleted_the_first(self, fake: FakeCluster, airflow: Airflow) -> None:
        airflow.steps = [fake.runs.clear, lambda: None, lambda: self.begin(airflow, fake)]
        assert end(CancelTrainingOperator) == NAME
        assert (fake.named(NAME).spec.uid, fake.named(NAME).status.failure) == ("2", FailureKind.CANCELLED)

    def test_also_of_another_dags_latest(self, fake: FakeCluster, airflow: Airflow) -> None:
        name = train(fake, dag_id="hourly", run_id="first").name
        fake.fail(name, FailureKind.RANK_FAILED, "it was a bad day")
        airflow.dags["hourly"] = {"first": {"train": "up_for_retry"}}
        airflow.steps = [lambda: None, lambda: self.begin(airflow, fake, dag_id="hourly", run_id="first")]
        assert end(CancelTrainingOperator, training_dag_id="hourly") == name
        assert fake.named(name).status.failure is FailureKind.CANCELLED

    @pytest.mark.parametrize("state", ["failed", "success", "skipped"])
    def test_a_task_that_fails_for_good_is_not_waited_for(
        self, fake: FakeCluster, airflow: Airflow, state: str
    ) -> None:
        airflow.steps = [lambda: None, lambda: airflow.become(state)]
        assert end(CancelTrainingOperator) == NAME
        assert fake.named(NAME).document.cancelled is None

    @BOTH
    def test_a_run_that_does_not_come_fails_the_task(self, fake: FakeCluster, kind: Operator) -> None:
        with pytest.raises(AirflowException, match=r"bad day.* is up_for_retry: its next run has not begun .* 0\.1 s"):
            end(kind, timeout=0.1)
        assert NAME in fake.runs

    def test_airflow_that_says_nothing_is_not_waited_for(
        self, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(end_training, "_SILENCE", 0.1)
        airflow.trouble = ConnectionError("away")
        assert end(CancelTrainingOperator) == NAME
        assert airflow.looks > 1


def test_a_training_that_has_not_begun_is_not_waited_for(
    fake: FakeCluster, airflow: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    airflow.become("queued")
    assert end(CancelTrainingOperator) is None
    assert "is queued: when it begins, its training is not ended by this task" in capsys.readouterr().out


class TestDeletedOnceItsEndIsTaken:
    """A task that waits for a run and finds none would be retried, and train again."""

    @pytest.fixture(autouse=True)
    def waiting(self, fake: FakeCluster, airflow: Airflow) -> None:
        train(fake)
        airflow.become("deferred")

    @pytest.mark.parametrize("succeeded", [True, False])
    def test_by_the_task(self, fake: FakeCluster, airflow: Airflow, *, succeeded: bool) -> None:
        if succeeded:
            fake.succeed(NAME)
        found: list[bool] = []

        def taken() -> None:
            ref = run(fake.find(NAME))
            found.append(run(fake.collected(ref)))
            run(fake.collect(ref, run(fake.owner(ref))))

        airflow.steps = [lambda: None, lambda: airflow.become("running"), taken]
        assert end(DeleteTrainingOperator) == NAME
        assert found == [False]
        assert NAME not in fake.runs

    def test_by_a_task_that_deletes_it_itself(self, fake: FakeCluster, airflow: Airflow) -> None:
        airflow.steps = [lambda: None, fake.runs.clear]
        assert end(DeleteTrainingOperator) == NAME

    @pytest.mark.parametrize("state", ["failed", "success"])
    def test_or_its_task_is_over(self, fake: FakeCluster, airflow: Airflow, state: str) -> None:
        airflow.steps = [lambda: None, lambda: airflow.become(state)]
        assert end(DeleteTrainingOperator) == NAME
        assert NAME not in fake.runs

    def test_it_stays_while_it_is_not_taken(self, fake: FakeCluster) -> None:
        with pytest.raises(AirflowException, match=r"is deferred, and has not taken the end .* within 0\.1 s"):
            end(DeleteTrainingOperator, timeout=0.1)
        assert fake.named(NAME).status.failure is FailureKind.CANCELLED

    def test_airflow_that_says_nothing_is_not_waited_for(
        self, fake: FakeCluster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(end_training, "_SILENCE", 0.1)
        airflow.trouble = ConnectionError("away")
        assert end(DeleteTrainingOperator) == NAME
        assert NAME not in fake.runs
