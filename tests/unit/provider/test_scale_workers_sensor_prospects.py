"""Whether the training that a sensor wants to scale will ever train, in this DAG and in another."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import ClassVar

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)

from elastic_runtime.errors import ClusterUnavailable, FailureKind
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.scaling.airflow_tasks import GRACE
from elastic_training.triggers.world_size import WorldSizeTrigger
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.scale_bench import DATE, NAME, TI, context, done, outcome_of, sensor, train, trigger_of


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training's task runs."""
    return FakeAirflow({TI.dag_id: {TI.run_id: {"train": "running", "more": "running"}}}).install(monkeypatch)


class TestWhetherItWillTrain:
    """Each of them for no longer than one look, whether it is the first one or a trigger's."""

    @pytest.mark.parametrize("deferrable", [False, True])
    def test_a_typo_fails_at_once(self, fake: FakeCluster, airflow: FakeAirflow, deferrable: bool) -> None:
        more = sensor(training_task_id="trian", deferrable=deferrable)
        with pytest.raises(AirflowFailException, match="Do you mean 'train'"):
            more.execute(context())

    def test_a_typo_is_seen_in_the_dag_itself(self, fake: FakeCluster, airflow: FakeAirflow) -> None:
        class Dag:
            dag_id, task_ids = TI.dag_id, ["train", "more"]

            def has_task(self, task_id: str) -> bool:
                return task_id in self.task_ids

        airflow.trouble = ConnectionError("away")
        with pytest.raises(AirflowFailException, match="Do you mean 'train'"):
            sensor(training_task_id="trian").execute(context() | {"dag": Dag()})
        assert not done(sensor())

    @pytest.mark.parametrize("state", ["failed", "upstream_failed", "removed", "skipped", "success"])
    @pytest.mark.parametrize(("policy", "raised"), [("fail", AirflowException), ("skip", AirflowSkipException)])
    def test_it_will_not(
        self, fake: FakeCluster, airflow: FakeAirflow, state: str, policy: str, raised: type[Exception]
    ) -> None:
        airflow.dags[TI.dag_id][TI.run_id]["train"] = state
        for deferrable in (False, True):
            with pytest.raises(raised, match=state) as caught:
                sensor(if_finished=policy, deferrable=deferrable).execute(context())
            assert type(caught.value) is raised

    def test_it_fails_before_its_run_while_the_sensor_is_deferred(
        self, fake: FakeCluster, airflow: FakeAirflow
    ) -> None:
        more = sensor(deferrable=True)
        trigger = trigger_of(more)
        airflow.dags[TI.dag_id][TI.run_id]["train"] = "upstream_failed"
        with pytest.raises(AirflowException, match="upstream_failed"):
            more.execute_complete(context(), outcome_of(trigger))

    @pytest.mark.parametrize(("policy", "raised"), [("fail", AirflowException), ("skip", AirflowSkipException)])
    def test_its_run_ends_before(
        self, fake: FakeCluster, airflow: FakeAirflow, policy: str, raised: type[Exception]
    ) -> None:
        train(fake)
        fake.succeed(NAME)
        assert not done(sensor(if_finished=policy))  # The task has not taken the result yet.
        airflow.dags[TI.dag_id][TI.run_id]["train"] = "success"
        with pytest.raises(raised, match="succeeded") as caught:
            sensor(if_finished=policy).execute(context())
        assert type(caught.value) is raised

    def test_a_training_that_will_be_retried_is_waited_for(self, fake: FakeCluster, airflow: FakeAirflow) -> None:
        train(fake)
        fake.fail(NAME, FailureKind.RANK_FAILED, "it broke")
        airflow.dags[TI.dag_id][TI.run_id]["train"] = "up_for_retry"
        assert not done(sensor())

    def test_airflow_is_not_asked_while_the_training_runs_nor_at_each_poke(
        self, fake: FakeCluster, airflow: FakeAirflow
    ) -> None:
        more = sensor()
        for _ in range(5):
            assert not done(more)
        assert airflow.looks == 1
        train(fake)
        for _ in range(5):
            done(more)
        assert airflow.looks == 1

    def test_an_airflow_that_does_not_answer_is_waited_for(self, fake: FakeCluster, airflow: FakeAirflow) -> None:
        airflow.trouble = ConnectionError("away")
        assert not done(sensor())
        train(fake)
        fake.succeed(NAME)
        with pytest.raises(AirflowException, match="succeeded"):  # That much is known without it.
            done(sensor())


class TestAnotherDag:
    def test_the_latest_run_that_lives(self, fake: FakeCluster) -> None:
        for number in range(3):
            train(fake, uid=str(number), dag_id="other", run_id=f"run {number}")
        train(fake, uid="9")
        fake.succeed(next(name for name, run in fake.runs.items() if run.spec.uid == "2"))
        assert not done(sensor(training_dag_id="other"))
        assert [each.size for each in fake.runs.values()] == [2, 3, 2, 2]

    def test_it_has_two_minutes_to_come(self, fake: FakeCluster, airflow: FakeAirflow) -> None:
        other = {"training_dag_id": "other"}
        assert not done(sensor(**other))
        long_ago = datetime.now(UTC) - GRACE
        with pytest.raises(AirflowFailException, match="no DAG of that id"):
            done(sensor(**other), start_date=long_ago)
        airflow.dags["other"] = {"yesterday": {"train": "success"}}
        with pytest.raises(AirflowException, match="no task 'train' of DAG 'other' runs"):
            done(sensor(**other), start_date=long_ago)
        airflow.dags["other"]["today"] = {"train": None}
        assert not done(sensor(**other), start_date=long_ago)

    def test_of_the_same_logical_date(self, fake: FakeCluster, airflow: FakeAirflow) -> None:
        other = {"training_dag_id": "other", "training_run": "same_logical_date"}
        airflow.dags["other"] = {"run 0": {"train": "running"}, "run 1": {"train": "running"}}
        for number in range(2):
            train(fake, uid=str(number), dag_id="other", run_id=f"run {number}")
        assert not done(sensor(**other))
        airflow.dates[DATE] = "run 0"
        assert not done(sensor(**other))
        assert [each.size for each in fake.runs.values()] == [3, 2]

    def test_no_logical_date_to_go_by(self, fake: FakeCluster) -> None:
        with pytest.raises(AirflowFailException, match="no logical date"):
            sensor(training_run="same_logical_date").execute(context() | {"logical_date": None})

    def test_another_dag_run_or_map_index_is_another_training(self, fake: FakeCluster, airflow: FakeAirflow) -> None:
        airflow.dags[TI.dag_id] |= {"another": {"train": "running"}, TI.run_id: {"train_0": "running"}}
        train(fake)
        assert not done(sensor(training_run_id="another"))
        assert not done(sensor(map_index="0"))
        assert run(fake.size(run(fake.find(NAME)))) == 2


class TestOneOfSeveralTrainings:
    """Of a DAG with ``max_active_runs=2``: once one has been asked, the request is for that one."""

    OTHER: ClassVar[dict[str, str]] = {"training_dag_id": "other"}

    @pytest.fixture
    def slow(self, airflow: FakeAirflow) -> Iterator[FakeCluster]:
        """A cluster in which only the test makes things happen; the first training runs."""
        airflow.dags["other"] = {"first": {"train": "running"}, "second": {"train": "running"}}
        with substituted("local", cluster := FakeCluster(automatic=False, poll=1)):
            cluster.train(train(cluster, dag_id="other", run_id="first").name, 2)
            yield cluster

    def another(self, cluster: FakeCluster) -> None:
        """Begins later, so it is the latest."""
        cluster.train(train(cluster, dag_id="other", run_id="second", uid="2").name, 2)

    def sizes(self, cluster: FakeCluster) -> list[int]:
        return [each.size for each in cluster.runs.values()]

    @pytest.mark.parametrize("workers", [3, "+1"])
    def test_for_a_trigger_and_one_that_takes_over(self, slow: FakeCluster, workers: int | str) -> None:
        trigger = trigger_of(sensor(**self.OTHER, deferrable=True, workers=workers))
        self.another(slow)
        again = WorldSizeTrigger(**trigger.serialize()[1])
        first = next(iter(slow.runs))
        slow.script(lambda: self.sizes(slow), lambda: slow.train(first, 3))
        outcome = outcome_of(again)
        assert (outcome["outcome"], outcome["result"]["run"]) == ("reached", first)
        assert self.sizes(slow) == [3, 2]

    @pytest.mark.parametrize("workers", [3, "+1"])
    def test_for_a_trigger_that_began_before_any_was_asked(self, slow: FakeCluster, workers: int | str) -> None:
        trigger = trigger_of(sensor(**self.OTHER, deferrable=True, workers=workers, after_step=5))
        first = next(iter(slow.runs))
        slow.publish(first, step=5)
        assert not done(sensor(**self.OTHER, workers=workers, after_step=5))
        self.another(slow)
        slow.publish(list(slow.runs)[1], step=5)
        slow.script(lambda: slow.train(first, 3))
        assert outcome_of(trigger)["result"]["run"] == first
        assert self.sizes(slow) == [3, 2]

    @pytest.mark.parametrize("workers", [3, "+1"])
    def test_for_a_sensor_that_is_rescheduled(self, slow: FakeCluster, workers: int | str) -> None:
        assert not done(sensor(**self.OTHER, workers=workers))
        self.another(slow)
        assert not done(sensor(**self.OTHER, workers=workers))
        first = next(iter(slow.runs))
        slow.train(first, 3)
        assert done(sensor(**self.OTHER, workers=workers))
        assert self.sizes(slow) == [3, 2]

    def test_though_its_answer_was_lost(self, slow: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        async def unavailable(_: RunRef) -> None:
            raise ClusterUnavailable("away")

        more = sensor(**self.OTHER)
        with monkeypatch.context() as patch:
            patch.setattr(slow, "paused", unavailable)
            assert not done(more)
        self.another(slow)
        assert not done(more)
        assert self.sizes(slow) == [3, 2]

    def test_though_it_ends(self, slow: FakeCluster, airflow: FakeAirflow) -> None:
        began = datetime.now(UTC)
        more = sensor(**self.OTHER)
        assert not done(more, start_date=began)
        self.another(slow)
        first = next(iter(slow.runs))
        slow.fail(first, FailureKind.RANK_FAILED, "it was a bad day")
        airflow.dags["other"]["first"]["train"] = "failed"
        for each in (more, sensor(**self.OTHER)):
            with pytest.raises(AirflowException, match="bad day"):
                done(each, start_date=began)
        assert self.sizes(slow) == [3, 2]
