from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow.sdk.exceptions import AirflowRescheduleException

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings, MissingRight
from elastic_runtime.status import FailureKind, Phase
from elastic_training.airflow_tasks import GRACE
from elastic_training.bridge import run
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.scale_bench import DATE, NAME, TI, context, outcome_of, train, trigger_of
from tests.unit.provider.virtual_time import run_virtually


def sensor(**more: Any) -> ScaleWorkersSensor:
    settings: dict[str, Any] = {"training_task_id": "train", "workers": 3, "deferrable": False}
    if "release" in more:
        settings.pop("workers")
    return ScaleWorkersSensor(task_id="more", **(settings | more))


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training's task runs."""
    return FakeAirflow({TI.dag_id: {TI.run_id: {"train": "running", "more": "running"}}}).install(monkeypatch)


@pytest.fixture
def slow() -> Iterator[FakeCluster]:
    """A cluster in which only the test makes things happen."""
    with substituted("local", cluster := FakeCluster(automatic=False, poll=1)):
        yield cluster


def done(more: ScaleWorkersSensor, **about: Any) -> bool:
    return bool(more.poke(context(**about)))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": "two"}, "workers"),
        ({"workers": None}, "workers"),
        ({"workers": 3, "release": ["worker-1"]}, "workers"),
        ({"release": ["../worker"]}, "release"),
        ({"cluster": "moon/"}, "cluster"),
        ({"if_finished": "cry"}, "if_finished"),
        ({"after_step": -1}, "after_step"),
        ({"after_epoch": "soon"}, "after_epoch"),
        ({"after_metric": ("loss", "~", 1)}, "after_metric"),
        ({"training_run": "newest"}, "training_run"),
        ({"training_run": "latest", "training_run_id": "today"}, "training_run"),
        ({"clip": "perhaps"}, "clip"),
    ],
)
def test_what_cannot_work_is_refused_at_parse(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        sensor(**({"workers": 3} | settings) if "release" not in settings else settings)
    assert caught.value.field == field


def test_it_waits_for_the_training_then_asks_then_sees_it_follow(fake: FakeCluster) -> None:
    more = sensor()
    assert not done(more)
    ref = train(fake, slots=2)
    assert not done(more)
    assert run(fake.size(ref)) == 3
    found = more.poke(context())
    assert found
    assert run(fake.status(ref)).world_size == 6
    result = found.xcom_value
    assert (result["workers"], result["world_size"], result["run"]) == (3, 6, NAME)
    assert datetime.fromisoformat(result["asked_at"])
    assert 0 <= result["seconds"] < 5


def test_the_first_world_keeps_the_size_that_the_training_starts_with(slow: FakeCluster) -> None:
    more = sensor()
    ref = train(slow)
    assert not done(more)
    slow.publish(NAME, phase=Phase.STARTING)
    assert not done(more)
    assert run(slow.size(ref)) == 2
    slow.train(NAME, 2)
    assert not done(more)
    assert run(slow.size(ref)) == 3


def test_it_asks_only_once_and_fails_when_it_is_overruled(fake: FakeCluster) -> None:
    ref = train(fake)
    more = sensor()
    done(more)
    run(fake.set_size(ref, 1, "somebody else"))
    with pytest.raises(AirflowException, match="since then 1"):
        done(more)
    assert run(fake.size(ref)) == 1


def test_a_new_incarnation_is_asked_again(fake: FakeCluster) -> None:
    more = sensor()
    train(fake)
    done(more)
    fake.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
    ref = train(fake, uid="2")
    done(more)
    assert run(fake.size(ref)) == 3


class TestSizes:
    def test_a_change_counts_once_over_pokes_and_tries(self, fake: FakeCluster) -> None:
        ref = train(fake)
        assert not done(sensor(workers="+1"))
        assert done(sensor(workers="+1"))
        assert done(sensor(workers="+1"), try_number=2)
        assert run(fake.size(ref)) == 3
        assert not done(sensor(workers="-1"), map_index=1)  # Another task.
        assert run(fake.size(ref)) == 2

    def test_a_change_is_of_the_size_at_the_first_look(self, slow: FakeCluster) -> None:
        ref = train(slow)
        slow.train(NAME, 2)
        assert not done(sensor(workers="+2"))
        slow.named(NAME).size = 1  # By hand.
        with pytest.raises(AirflowException, match="4 workers were asked for, and since then 1"):
            done(sensor(workers="+2"))
        assert run(slow.size(ref)) == 1

    def test_an_absolute_size_is_asked_again_by_a_new_try(self, fake: FakeCluster) -> None:
        ref = train(fake)
        done(sensor())
        run(fake.set_size(ref, 1, "somebody else"))
        done(sensor(), try_number=2)
        assert run(fake.size(ref)) == 3

    @pytest.mark.parametrize(("wish", "size"), [("min", 1), ("max", 4), ("4", 4)])
    def test_bounds_and_numbers_from_templates(self, fake: FakeCluster, wish: str, size: int) -> None:
        ref = train(fake)
        more = sensor(workers="{{ params.more }}")
        more.workers = wish
        done(more)
        assert run(fake.size(ref)) == size

    @pytest.mark.parametrize("wish", [5, "+3", "-2"])
    def test_out_of_bounds_is_not_retried(self, fake: FakeCluster, wish: Any) -> None:
        ref = train(fake)
        with pytest.raises(AirflowFailException, match="bounds 1 to 4"):
            done(sensor(workers=wish))
        assert run(fake.size(ref)) == 2
        done(sensor(workers=wish, clip=True))
        assert run(fake.size(ref)) == (1 if wish == "-2" else 4)

    def test_named_workers_go_and_are_not_replaced(self, fake: FakeCluster) -> None:
        ref = train(fake)
        run(fake.set_size(ref, 4, "somebody else"))
        assert not done(sensor(release=["worker-1", "worker-2"]))
        assert done(sensor(release=["worker-1", "worker-2"]))
        status = run(fake.status(ref))
        assert run(fake.size(ref)) == 2
        assert {each.name for each in status.workers if each.state == "training"} == {"worker-0", "worker-3"}

    def test_a_named_worker_that_is_not_there(self, fake: FakeCluster) -> None:
        ref = train(fake)
        with pytest.raises(AirflowFailException, match="Name one of: worker-0, worker-1"):
            done(sensor(release=["worker-7"]))
        assert run(fake.size(ref)) == 2

    def test_a_rendered_size_that_is_no_number_is_not_retried(self, fake: FakeCluster) -> None:
        more = sensor(workers="{{ params.more }}")
        more.workers = "many"
        with pytest.raises(AirflowFailException, match="workers"):
            done(more)


class TestWhen:
    @pytest.mark.parametrize(
        ("settings", "there"),
        [
            ({"after_step": 7}, {"step": 7}),
            ({"after_epoch": 2}, {"metrics": {"epoch": 2.0}}),
            ({"after_metric": ("accuracy", ">=", 0.9)}, {"metrics": {"accuracy": 0.95}}),
        ],
    )
    def test_it_asks_when_it_is_time(self, slow: FakeCluster, settings: Any, there: Any) -> None:
        ref = train(slow)
        slow.train(NAME, 2)
        more = sensor(**settings)
        assert not done(more)
        assert run(slow.size(ref)) == 2
        slow.publish(NAME, **there)
        assert not done(more)
        assert run(slow.size(ref)) == 3

    def test_deferred_too(self, slow: FakeCluster) -> None:
        train(slow)
        slow.train(NAME, 2)
        trigger = trigger_of(sensor(deferrable=True, after_step=7))
        slow.script(
            lambda: slow.publish(NAME, step=6),
            lambda: slow.publish(NAME, step=7),
            lambda: slow.train(NAME, slow.named(NAME).size),
        )
        assert outcome_of(trigger)["outcome"] == "reached"


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


class TestTrouble:
    def test_a_cluster_that_does_not_answer_is_no_failure(self, fake: FakeCluster, monkeypatch: Any) -> None:
        train(fake)
        more = sensor()
        with monkeypatch.context() as patch:

            async def away(_: Any) -> Any:
                raise ClusterUnavailable("the API server does not answer")

            patch.setattr(fake, "find", away)
            for _ in range(3):
                assert not done(more)
        assert not done(more)
        assert done(more)

    def test_what_waiting_cannot_help_fails(self, fake: FakeCluster, monkeypatch: Any) -> None:
        async def refused(_: Any) -> Any:
            raise MissingRight("may not get configmaps")

        monkeypatch.setattr(fake, "find", refused)
        for deferrable in (False, True):
            with pytest.raises(AirflowFailException, match="may not get"):
                sensor(deferrable=deferrable).execute(context())


OUTCOMES: list[tuple[dict[str, Any], type[Exception] | None]] = [
    ({}, AirflowException),
    ({"if_finished": "skip"}, AirflowSkipException),
    ({"soft_fail": True}, AirflowSkipException),
    ({"never_fail": True}, AirflowSkipException),
    ({"silent_fail": True}, AirflowException),
]


class TestTheSameOutcomeEverywhere:
    """At the first look, from the trigger, and poked."""

    @pytest.mark.parametrize(("settings", "raised"), OUTCOMES)
    def test_when_the_training_has_ended(
        self, fake: FakeCluster, airflow: FakeAirflow, settings: Any, raised: type[Exception]
    ) -> None:
        later = sensor(deferrable=True, **settings)
        trigger = trigger_of(later)
        airflow.dags[TI.dag_id][TI.run_id]["train"] = "failed"
        found = []
        for look in (
            lambda: sensor(**settings).execute(context()),
            lambda: sensor(deferrable=True, **settings).execute(context()),
            lambda: later.execute_complete(context(), outcome_of(trigger)),
        ):
            with pytest.raises(AirflowException) as caught:
                look()
            found.append(type(caught.value))
        assert found == [raised] * 3

    @pytest.mark.parametrize(("settings", "raised"), OUTCOMES)
    def test_when_the_size_is_out_of_bounds(self, fake: FakeCluster, settings: Any, raised: type[Exception]) -> None:
        if raised is AirflowException or "if_finished" in settings:
            raised = AirflowFailException
        settings = settings | {"workers": 9}
        later = sensor(deferrable=True, **settings)
        trigger = trigger_of(later)
        train(fake)
        for look in (
            lambda: sensor(**settings).execute(context()),
            lambda: sensor(deferrable=True, **settings).execute(context()),
            lambda: later.execute_complete(context(), outcome_of(trigger)),
        ):
            with pytest.raises(raised) as caught:
                look()
            assert isinstance(caught.value, raised)

    @pytest.mark.parametrize(("settings", "raised"), OUTCOMES)
    def test_when_the_time_is_over(self, fake: FakeCluster, settings: Any, raised: type[Exception]) -> None:
        if raised is AirflowException or "if_finished" in settings:
            raised = AirflowSensorTimeout
        later = sensor(deferrable=True, timeout=60, **settings)
        trigger = trigger_of(later)
        trigger.deadline = datetime.now(UTC) - timedelta(seconds=1)
        with pytest.raises(raised):
            later.execute_complete(context(), outcome_of(trigger))
        with pytest.raises(raised):
            sensor(timeout=0, poke_interval=0.01, **settings).execute(context())

    @pytest.mark.parametrize(
        ("settings", "raised"),
        [({}, Exception), ({"soft_fail": True}, Exception), ({"never_fail": True}, AirflowSkipException)],
    )
    def test_when_a_look_fails_in_a_way_that_nobody_expects(
        self, fake: FakeCluster, monkeypatch: Any, settings: Any, raised: type[Exception]
    ) -> None:
        later = sensor(deferrable=True, **settings)
        trigger = trigger_of(later)

        async def broken(_: Any) -> Any:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(fake, "find", broken)
        for look in (
            lambda: sensor(**settings).execute(context()),
            lambda: sensor(deferrable=True, **settings).execute(context()),
            lambda: later.execute_complete(context(), outcome_of(trigger)),
        ):
            with pytest.raises(raised) as caught:
                look()
            assert isinstance(caught.value, AirflowSkipException) == (raised is AirflowSkipException)

    def test_silent_fail_goes_on_after_such_a_look(self, fake: FakeCluster, monkeypatch: Any) -> None:
        train(fake)
        more = sensor(deferrable=True, silent_fail=True)
        find, broken = fake.find, [True, False, True]

        async def sometimes(name: str) -> Any:
            if broken and broken.pop():
                raise ZeroDivisionError("a bug")
            return await find(name)

        monkeypatch.setattr(fake, "find", sometimes)
        assert outcome_of(trigger_of(more))["outcome"] == "reached"
        assert not broken


def test_reschedule_keeps_its_place(fake: FakeCluster) -> None:
    with pytest.raises(AirflowRescheduleException):
        sensor(mode="reschedule").execute(context())
    train(fake)
    with pytest.raises(AirflowRescheduleException):
        sensor(mode="reschedule").execute(context(first_reschedule=datetime.now(UTC)))
    result = sensor(mode="reschedule").execute(context(first_reschedule=datetime.now(UTC)))
    assert result["workers"] == 3


class TestDeferred:
    def test_a_size_that_is_there_does_not_defer(self, fake: FakeCluster) -> None:
        train(fake)
        more = sensor(deferrable=True)
        done(more)
        assert more.execute(context())["workers"] == 3

    def test_it_is_reached_after_the_world_has_followed(self, slow: FakeCluster) -> None:
        more = sensor(deferrable=True)
        trigger = trigger_of(more)
        ref = train(slow)
        slow.train(NAME, 2)
        slow.script(lambda: slow.publish(NAME, step=3), lambda: slow.train(NAME, 3))
        event = outcome_of(trigger)
        assert event["outcome"] == "reached"
        assert run(slow.size(ref)) == 3
        assert more.execute_complete(context(), event)["world_size"] == 3

    def test_its_deadline_is_absolute(self, fake: FakeCluster) -> None:
        more = sensor(deferrable=True, timeout=60)
        trigger = trigger_of(more)
        trigger.deadline = datetime.now(UTC) - timedelta(seconds=1)
        with pytest.raises(AirflowSensorTimeout, match="has not begun"):
            more.execute_complete(context(), outcome_of(trigger))

    def test_a_new_try_of_the_training_is_asked_again(self, slow: FakeCluster) -> None:
        train(slow)
        slow.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
        trigger = trigger_of(sensor(deferrable=True))

        async def train_again() -> Any:
            async with aclosing(trigger.run()) as events:
                waiting = asyncio.ensure_future(anext(events))
                await asyncio.sleep(30)
                train(slow, uid="2")
                slow.script(lambda: slow.train(NAME, 2), lambda: slow.train(NAME, 3))
                return (await waiting).payload

        assert run_virtually(train_again())["outcome"] == "reached"
        assert run(slow.status(run(slow.find(NAME)))).phase is Phase.RUNNING
