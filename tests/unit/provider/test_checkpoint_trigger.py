"""An asset hears of each durable checkpoint while the training goes on, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.definitions.asset import AssetNameRef
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Checkpoint
from elastic_training.assets import checkpoint_asset, report_to_outlets
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.identity import deployment
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner
from elastic_training.triggers.checkpoint_cursor import MAX_RUNS
from elastic_training.triggers.checkpoints import CURSOR_KEY, CheckpointTrigger
from tests.unit.provider.fake_states import FakeStateStore
from tests.unit.provider.virtual_time import run_virtually

BEGIN = datetime.now(UTC)
TASK = TaskIdentity("nightly", "monday", "train")


class Listed(FakeCluster):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__(poll=1)
        self.lists = self.statuses = 0
        self.trouble: list[Exception] = []
        self.unreadable: list[Exception] = []

    async def list(self) -> Any:
        self.lists += 1
        if self.trouble:
            raise self.trouble.pop()
        return await super().list()

    async def status(self, ref: Any) -> Any:
        self.statuses += 1
        if self.unreadable:
            raise self.unreadable.pop()
        return await super().status(ref)


@pytest.fixture
def fake() -> Iterator[Listed]:
    with substituted("local", cluster := Listed()):
        yield cluster


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT", "research")
    assert deployment.deployment() == "research"


def claimed(fake: FakeCluster, task: TaskIdentity = TASK, where: str = "research") -> str:
    owner = Owner(task.dag_id, task.run_id, task.task_id, task.map_index, 1, "nonce", where)
    run(fake.claim(RunSpec(name=task.name, uid=task.run_id, command=("python", "train.py")), owner.text()))
    return task.name


def write(fake: FakeCluster, name: str, step: int) -> None:
    time = BEGIN + timedelta(days=1, seconds=step)
    fake.publish(name, checkpoint=Checkpoint(f"s3://bucket/{name}/{step:08}", step, time))


def watcher(states: FakeStateStore | None = None, **more: Any) -> CheckpointTrigger:
    settings: dict[str, Any] = {"dag_id": "nightly", "task_id": "train", "asset": "weights"} | more
    trigger = CheckpointTrigger(**settings)
    if states is not None:
        trigger.asset_state_store = {AssetNameRef(settings["asset"]): states}  # type: ignore[assignment]
    return trigger


@asynccontextmanager
async def watching(trigger: CheckpointTrigger, manager: SharedStreamManager | None = None) -> AsyncIterator[list[Any]]:
    """As the triggerer runs it, for as long as the block; what it has fired."""
    fired: list[Any] = []

    async def collect() -> None:
        if manager is None:
            events = trigger.run()
        else:
            key = trigger.shared_stream_key()
            assert key is not None
            stream = manager.subscribe(trigger_id=id(trigger), trigger=trigger, key=key)
            events = trigger.filter_shared_stream(stream)
        async for event in events:
            assert isinstance(event, TriggerEvent)
            fired.append(event.payload)

    task = asyncio.create_task(collect())
    await asyncio.sleep(15)
    try:
        yield fired
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def steps(fired: list[Any]) -> list[int]:
    return [each["step"] for each in fired]


def test_each_is_told_with_its_place_while_the_training_goes_on(fake: Listed) -> None:
    name = claimed(fake)

    async def train() -> list[Any]:
        async with watching(watcher(FakeStateStore())) as fired:
            for step in (100, 200):
                write(fake, name, step)
                await asyncio.sleep(15)
            return fired

    first, second = run_virtually(train())
    assert {key: first[key] for key in ("dag_id", "run_id", "task_id", "map_index", "run", "uid", "step", "uri")} == {
        "dag_id": "nightly",
        "run_id": "monday",
        "task_id": "train",
        "map_index": -1,
        "run": name,
        "uid": "monday",
        "step": 100,
        "uri": f"s3://bucket/{name}/00000100",
    }
    assert second["step"] == 200


def test_all_dag_runs_and_mapped_instances_of_the_task_are_watched_and_no_others(fake: Listed) -> None:
    mine = [claimed(fake, replace(TASK, run_id=day, map_index=index)) for day, index in (("tue", -1), ("wed", 3))]
    others = [claimed(fake, replace(TASK, run_id="x", task_id="other")), claimed(fake, replace(TASK, dag_id="hourly"))]
    others += [claimed(fake, replace(TASK, run_id=f"of {where}"), where) for where in ("another-deployment", "")]

    async def train() -> list[Any]:
        async with watching(watcher()) as fired:
            for name in (*mine, *others):
                write(fake, name, 100)
            await asyncio.sleep(15)
            return fired

    assert sorted(each["run"] for each in run_virtually(train())) == sorted(mine)


def test_of_many_mapped_instances_none_hides_another(fake: Listed) -> None:
    names = [claimed(fake, replace(TASK, map_index=index)) for index in range(MAX_RUNS + 20)]

    async def look(states: FakeStateStore) -> list[Any]:
        async with watching(watcher(states)) as fired:
            for turn in (1, 2):
                for index, name in enumerate(names):
                    write(fake, name, 1000 * turn + index * (-1) ** turn)
                await asyncio.sleep(15)
        return fired

    fired = run_virtually(look(FakeStateStore()))
    assert len(fired) == len({(each["run"], each["step"]) for each in fired}) == 2 * len(names)


def test_a_restarted_triggerer_repeats_nothing_and_tells_what_came_meanwhile(fake: Listed) -> None:
    name, states = claimed(fake), FakeStateStore()

    async def train() -> list[int]:
        async with watching(watcher(states)) as before:
            write(fake, name, 100)
            await asyncio.sleep(15)
        write(fake, name, 200)
        async with watching(watcher(states)) as after:
            await asyncio.sleep(60)
        async with watching(watcher(states)) as last:
            return [*steps(before), *steps(after), *steps(last)]

    assert run_virtually(train()) == [100, 200]


def test_below_airflow_3_3_a_restarted_triggerer_tells_what_is_written_from_then_on(fake: Listed) -> None:
    name = claimed(fake)
    fake.publish(name, checkpoint=Checkpoint("s3://bucket/run/1", 1, BEGIN - timedelta(hours=1)))

    async def train() -> list[int]:
        async with watching(watcher()) as fired:
            write(fake, name, 100)
            await asyncio.sleep(15)
            return steps(fired)

    assert run_virtually(train()) == [100]


def test_of_two_triggerers_that_both_believe_to_be_the_one_each_checkpoint_is_told_by_one(fake: Listed) -> None:
    name, states = claimed(fake), FakeStateStore()

    async def train() -> list[int]:
        async with watching(watcher(states)) as one, watching(watcher(states)) as other:
            write(fake, name, 100)
            await asyncio.sleep(15)
            return steps(one) + steps(other)

    assert run_virtually(train()) == [100]


def test_watchers_share_one_list_and_look_at_a_status_only_for_news(fake: Listed) -> None:
    name = claimed(fake)
    other = claimed(fake, replace(TASK, task_id="other"))

    async def train() -> list[list[int]]:
        manager = SharedStreamManager()
        one, two = watcher(FakeStateStore()), watcher(FakeStateStore(), asset="others", task_id="other")
        assert one.serialize() != two.serialize()
        async with watching(one, manager) as first, watching(two, manager) as second:
            write(fake, name, 100)
            write(fake, other, 300)
            await asyncio.sleep(600)
            fired = [steps(first), steps(second)]
        await manager.stop_all()
        return fired

    assert run_virtually(train()) == [[100], [300]]
    assert 60 <= fake.lists <= 66, "one each ten seconds, whoever watches"
    assert fake.statuses <= 4, "one when a run is first seen, one for each piece of news"


def test_a_cluster_that_does_not_answer_is_asked_again_less_often(fake: Listed) -> None:
    name = claimed(fake)
    fake.trouble = [ClusterUnavailable("away"), InvalidSettings("cluster", "no such connection", "Add it")] * 3

    async def train() -> list[int]:
        async with watching(watcher(FakeStateStore())) as fired:
            write(fake, name, 100)
            await asyncio.sleep(3600)
            return steps(fired)

    assert run_virtually(train()) == [100]


def test_a_status_that_cannot_be_read_is_read_again(fake: Listed) -> None:
    name = claimed(fake)

    async def train() -> list[int]:
        async with watching(watcher(FakeStateStore())) as fired:
            fake.unreadable = [ClusterUnavailable("away"), RuntimeError("the connection is not what it was")]
            write(fake, name, 100)
            await asyncio.sleep(60)
            return steps(fired)

    assert run_virtually(train()) == [100]


@pytest.mark.parametrize("broken", [RuntimeError("no answer"), None])
def test_a_state_that_cannot_be_read_costs_warnings(fake: Listed, broken: Exception | None) -> None:
    name = claimed(fake)
    states = FakeStateStore({CURSOR_KEY: {"since": "never", "told": 7}}, trouble=broken)

    async def train() -> list[int]:
        async with watching(watcher(states)) as fired:
            write(fake, name, 100)
            await asyncio.sleep(60)
            return steps(fired)

    assert run_virtually(train()) == [100]


class TestAsset:
    def test_it_is_watched_by_a_trigger_that_comes_back_from_its_serialized_form(self) -> None:
        asset = checkpoint_asset("weights", dag_id="nightly", task_id="train", cluster="gpus/research", uri="s3://b/w")
        assert (asset.name, asset.uri) == ("weights", "s3://b/w")
        (watch,) = asset.watchers
        path, kwargs = watch.trigger.serialize()
        assert path == "elastic_training.triggers.checkpoints.CheckpointTrigger"
        assert CheckpointTrigger(**kwargs).serialize() == (path, kwargs)
        assert CheckpointTrigger.hash(path, kwargs) == CheckpointTrigger.hash(*watch.trigger.serialize())

    @pytest.mark.parametrize("wrong", [{"cluster": "no/such/place"}, {"interval": 0}])
    def test_what_cannot_work_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidSettings):
            checkpoint_asset("weights", **({"dag_id": "nightly", "task_id": "train"} | wrong))


def test_events_of_outlets_tell_run_and_checkpoint(fake: Listed) -> None:
    from airflow.sdk import Asset
    from airflow.sdk.execution_time.context import OutletEventAccessors

    name, asset, events = claimed(fake), Asset("weights"), OutletEventAccessors()
    write(fake, name, 100)
    status = run(fake.status(run(fake.find(name))))
    report_to_outlets({"outlet_events": events}, [asset, "no asset"], status)
    extra = events[asset].extra
    assert (extra["run"], extra["step"], extra["uri"]) == (name, 100, f"s3://bucket/{name}/00000100")
    report_to_outlets({}, [asset], status)
