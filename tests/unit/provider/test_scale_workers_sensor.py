from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.exceptions import AirflowRescheduleException

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.spec import RunSpec, WorkersSpec
from elastic_runtime.status import FailureKind, Phase
from elastic_training.bridge import run
from elastic_training.clusters.base import RunRef
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.naming import run_name
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.triggers.world_size import WorldSizeTrigger
from tests.unit.provider.fakes import FakeTaskInstance
from tests.unit.provider.virtual_time import run_virtually

TI = FakeTaskInstance("more")
NAME = run_name(TI.dag_id, TI.run_id, "train")


def sensor(**more: Any) -> ScaleWorkersSensor:
    settings: dict[str, Any] = {"training_task_id": "train", "workers": 3, "deferrable": False}
    return ScaleWorkersSensor(task_id="more", **(settings | more))


def train(cluster: FakeCluster, slots: int = 1, uid: str = "1") -> RunRef:
    spec = RunSpec(name=NAME, uid=uid, command=("python",), workers=WorkersSpec(1, 2, 4, slots))
    return run(cluster.claim(spec, "the training")).ref


def context(**more: Any) -> dict[str, Any]:
    return {"ti": FakeTaskInstance("more", **more)}


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"workers": 0}, "workers"), ({"cluster": "moon/"}, "cluster"), ({"if_finished": "cry"}, "if_finished")],
)
def test_what_cannot_work_is_refused_at_parse(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        sensor(**settings)
    assert caught.value.field == field


def test_it_waits_for_the_training_then_asks_then_sees_it_follow(fake: FakeCluster) -> None:
    more = sensor()
    assert not more.poke(context())
    ref = train(fake, slots=2)
    assert not more.poke(context())
    assert run(fake.size(ref)) == 3
    assert more.poke(context())
    assert run(fake.status(ref)).world_size == 6


def test_the_first_world_keeps_the_size_that_the_training_starts_with() -> None:
    slow = FakeCluster(automatic=False)
    with substituted("local", slow):
        more = sensor()
        ref = train(slow)
        assert not more.poke(context())
        slow.publish(NAME, phase=Phase.STARTING)
        assert not more.poke(context())
        assert run(slow.size(ref)) == 2
        slow.train(NAME, 2)
        assert not more.poke(context())
        assert run(slow.size(ref)) == 3


def test_it_asks_only_once_and_fails_when_it_is_overruled(fake: FakeCluster) -> None:
    ref = train(fake)
    more = sensor()
    more.poke(context())
    run(fake.set_size(ref, 1, "somebody else"))
    with pytest.raises(AirflowException, match="since then 1"):
        more.poke(context())
    assert run(fake.size(ref)) == 1


def test_a_new_incarnation_is_asked_again(fake: FakeCluster) -> None:
    more = sensor()
    train(fake)
    more.poke(context())
    fake.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
    ref = train(fake, uid="2")
    more.poke(context())
    assert run(fake.size(ref)) == 3


def test_a_size_out_of_bounds_is_not_retried(fake: FakeCluster) -> None:
    ref = train(fake)
    with pytest.raises(AirflowFailException, match="bounds 1 to 4"):
        sensor(workers=5).poke(context())
    assert run(fake.size(ref)) == 2


def test_a_rendered_size_that_is_no_number_is_not_retried(fake: FakeCluster) -> None:
    more = sensor(workers="{{ params.more }}")
    more.workers = "many"
    with pytest.raises(AirflowFailException, match="workers"):
        more.poke(context())


@pytest.mark.parametrize(("policy", "raised"), [("fail", AirflowException), ("skip", AirflowSkipException)])
def test_a_training_that_ends_before(fake: FakeCluster, policy: str, raised: type[Exception]) -> None:
    train(fake)
    started = context()
    fake.succeed(NAME)
    with pytest.raises(raised, match="succeeded") as caught:
        sensor(if_finished=policy).poke(started)
    assert type(caught.value) is raised


def test_the_ended_run_of_an_earlier_try_is_no_verdict_at_first(fake: FakeCluster) -> None:
    train(fake)
    fake.succeed(NAME)
    just_now = context()
    assert not sensor().poke(just_now)
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    fake.publish(NAME, finished=long_ago - timedelta(hours=1))
    with pytest.raises(AirflowException, match="succeeded"):
        sensor().poke(context(start_date=long_ago))


def test_another_dag_run_or_map_index_is_another_training(fake: FakeCluster) -> None:
    train(fake)
    assert not sensor(training_run_id="another").poke(context())
    assert not sensor(map_index="0").poke(context())
    assert run(fake.size(run(fake.find(NAME)))) == 2


def test_reschedule_keeps_its_place(fake: FakeCluster) -> None:
    more = sensor(mode="reschedule")
    with pytest.raises(AirflowRescheduleException):
        more.execute(context())
    train(fake)
    with pytest.raises(AirflowRescheduleException):
        more.execute(context(first_reschedule=datetime.now(UTC)))
    more.execute(context(first_reschedule=datetime.now(UTC)))


class TestDeferred:
    @staticmethod
    def trigger_of(more: ScaleWorkersSensor) -> WorldSizeTrigger:
        with pytest.raises(TaskDeferred) as caught:
            more.execute(context())
        trigger = caught.value.trigger
        assert isinstance(trigger, WorldSizeTrigger)
        return WorldSizeTrigger(**trigger.serialize()[1])

    @staticmethod
    def outcome_of(trigger: WorldSizeTrigger) -> Any:
        async def first() -> Any:
            return [event.payload async for event in trigger.run()]

        (payload,) = run_virtually(first())
        return payload

    def test_a_size_that_is_there_does_not_defer(self, fake: FakeCluster) -> None:
        train(fake)
        more = sensor(deferrable=True)
        more.poke(context())
        more.execute(context())

    def test_it_is_reached_after_the_world_has_followed(self) -> None:
        slow = FakeCluster(automatic=False, poll=1)
        with substituted("local", slow):
            more = sensor(deferrable=True)
            trigger = self.trigger_of(more)
            ref = train(slow)
            slow.train(NAME, 2)
            slow.script(lambda: slow.publish(NAME, step=3), lambda: slow.train(NAME, 3))
            event = self.outcome_of(trigger)
            assert event["outcome"] == "reached"
            assert run(slow.size(ref)) == 3
            more.execute_complete(context(), event)

    def test_it_fails_when_the_training_ends(self, fake: FakeCluster) -> None:
        slow = FakeCluster(automatic=False, poll=1)
        with substituted("local", slow):
            more = sensor(deferrable=True, if_finished="skip")
            train(slow)
            trigger = self.trigger_of(more)
            slow.script(lambda: slow.fail(NAME, FailureKind.RANK_FAILED, "it broke"))
            event = self.outcome_of(trigger)
            with pytest.raises(AirflowSkipException, match="it broke"):
                more.execute_complete(context(), event)

    def test_a_size_out_of_bounds_ends_it(self, fake: FakeCluster) -> None:
        more = sensor(deferrable=True, workers=9)
        trigger = self.trigger_of(more)
        train(fake)
        with pytest.raises(AirflowFailException, match="bounds"):
            more.execute_complete(context(), self.outcome_of(trigger))

    def test_its_deadline_is_absolute(self, fake: FakeCluster) -> None:
        more = sensor(deferrable=True, timeout=60)
        trigger = self.trigger_of(more)
        trigger.deadline = datetime.now(UTC) - timedelta(seconds=1)
        with pytest.raises(AirflowSensorTimeout, match="has not begun"):
            more.execute_complete(context(), self.outcome_of(trigger))

    def test_a_new_try_of_the_training_is_asked_again(self) -> None:
        slow = FakeCluster(automatic=False, poll=1)
        with substituted("local", slow):
            train(slow)
            slow.fail(NAME, FailureKind.LAUNCHER_LOST, "the launcher is gone")
            trigger = self.trigger_of(sensor(deferrable=True))

            async def train_again() -> Any:
                async with aclosing(trigger.run()) as events:
                    waiting = asyncio.ensure_future(anext(events))
                    await asyncio.sleep(30)
                    train(slow, uid="2")
                    slow.script(lambda: slow.train(NAME, 2), lambda: slow.train(NAME, 3))
                    return (await waiting).payload

            assert run_virtually(train_again())["outcome"] == "reached"
            assert run(slow.status(run(slow.find(NAME)))).phase is Phase.RUNNING
