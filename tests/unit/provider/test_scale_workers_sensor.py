from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
)
from airflow.sdk.exceptions import AirflowRescheduleException
from airflow.utils.sqlalchemy import UtcDateTime
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.run.status import Phase, Status, World
from elastic_training.clusters.document import SizeRequest
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.scaling.request import had
from tests.unit.provider.fake_airflow import FakeAirflow
from tests.unit.provider.fakes import TaskInstanceOfAirflow2
from tests.unit.provider.scale_bench import DATE, NAME, TI, context, done, outcome_of, sensor, train, trigger_of
from tests.unit.provider.virtual_time import run_virtually


@pytest.fixture(autouse=True)
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeAirflow:
    """In which the training's task runs."""
    return FakeAirflow({TI.dag_id: {TI.run_id: {"train": "running", "more": "running"}}}).install(monkeypatch)


@pytest.fixture
def slow() -> Iterator[FakeCluster]:
    """A cluster in which only the test makes things happen."""
    with substituted("local", cluster := FakeCluster(automatic=False, poll=1)):
        yield cluster


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"workers": -1}, "workers"),
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
    run(fake.ask(ref, 1, "somebody else"))
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


def test_a_size_that_was_there_while_nobody_looked_was_reached(fake: FakeCluster) -> None:
    """As by a training whose last epoch is over before a busy triggerer looks again."""
    more = sensor()
    train(fake, slots=2)
    assert not done(more)
    fake.train(NAME, 1)
    fake.succeed(NAME)
    found = more.poke(context())
    assert found
    assert (found.xcom_value["workers"], found.xcom_value["world_size"]) == (3, 6)
    assert found.xcom_value["seconds"] >= 0


def test_a_size_that_was_never_there_was_not_reached(slow: FakeCluster, airflow: FakeAirflow) -> None:
    more = sensor()
    train(slow)
    slow.train(NAME, 2)
    assert not done(more)
    slow.train(NAME, 4)
    slow.succeed(NAME)
    airflow.dags[TI.dag_id][TI.run_id]["train"] = "success"
    with pytest.raises(AirflowException, match="before it had the size 3"):
        more.poke(context())


@pytest.mark.parametrize(
    ("worlds", "reached"),
    [
        ([(-9, 2), (1, 3)], True),
        ([(-9, 3), (1, 2)], True),
        ([(-9, 3), (-8, 2), (1, 4)], False),
        ([(-9, 3), (-8, 0)], False),
        ([], False),
    ],
)
def test_worlds_count_from_the_one_at_the_time_of_the_wish(worlds: list[tuple[int, int]], reached: bool) -> None:
    history = tuple(World(DATE + timedelta(seconds=at), size, 1) for at, size in worlds)
    status = Status("run", "1", Phase.SUCCEEDED, "", DATE, history=history)
    assert had(status, SizeRequest("wish", workers=3, asked=DATE), slots=1) is reached


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
        run(fake.ask(ref, 1, "somebody else"))
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
        run(fake.ask(ref, 4, "somebody else"))
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


def test_reschedule_keeps_its_place(fake: FakeCluster) -> None:
    with pytest.raises(AirflowRescheduleException):
        sensor(mode="reschedule").execute(context())
    train(fake)
    with pytest.raises(AirflowRescheduleException):
        sensor(mode="reschedule").execute(context(first_reschedule=datetime.now(UTC)))
    result = sensor(mode="reschedule").execute(context(first_reschedule=datetime.now(UTC)))
    assert result["workers"] == 3


class Base(DeclarativeBase):
    """Of the table below."""


class TaskReschedule(Base):
    """Airflow 2's, in which each row has its task's ids."""

    __tablename__ = "task_reschedule"
    id: Mapped[int] = mapped_column(primary_key=True)
    dag_id: Mapped[str] = mapped_column()
    task_id: Mapped[str] = mapped_column()
    run_id: Mapped[str] = mapped_column()
    map_index: Mapped[int] = mapped_column()
    try_number: Mapped[int] = mapped_column()
    start_date: Mapped[datetime] = mapped_column(UtcDateTime)


def test_airflow_2_says_in_its_database_when_a_rescheduled_sensor_began(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    Base.metadata.create_all(engine)
    monkeypatch.setattr("airflow.utils.session.create_session", lambda: Session(engine))
    monkeypatch.setattr("airflow.models.taskreschedule.TaskReschedule", TaskReschedule)
    instance = TaskInstanceOfAirflow2("more", max_tries=4)
    ids = {"dag_id": instance.dag_id, "run_id": instance.run_id, "map_index": -1, "task_id": "more"}
    about = {"ti": instance, "task": SimpleNamespace(retries=2, dag=None)}
    train(fake)
    first, began = sensor(mode="reschedule"), DATE + timedelta(minutes=5)
    assert not bool(first.poke(about))
    assert first._scale_wait is not None
    assert first._scale_wait.request.began == instance.start_date
    rows = [
        ids | {"try_number": 2, "start_date": DATE},  # before the clear
        ids | {"try_number": 3, "start_date": began + timedelta(minutes=1)},
        ids | {"try_number": 3, "start_date": began},
        ids | {"try_number": 3, "start_date": DATE, "task_id": "train"},
        ids | {"try_number": 3, "start_date": DATE, "map_index": 1},
    ]
    with engine.begin() as connection:
        connection.execute(sa.insert(TaskReschedule), rows)
    again = sensor(mode="reschedule")
    assert bool(again.poke(about))
    assert again._scale_wait is not None
    assert again._scale_wait.request.began == began
    engine.dispose()


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
