"""A pool in pods that several tasks bring up, take down or use at once, at an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text
from elastic_runtime.errors import ClusterUnavailable, Conflict, InvalidSettings, RunNotFound
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS
from elastic_runtime.pool.pods.objects import ENDING, PoolNames
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_training.clusters.kubernetes import pools
from elastic_training.clusters.kubernetes.documents import creation
from elastic_training.clusters.kubernetes.pools import StandingPool, confirm, have_up
from elastic_training.settings import Pods, TrainingPool
from elastic_training.settings.training_pool import PodPool
from tests.unit.runtime.fake_kubernetes import FakePlace

WANTED = TrainingPool("team-a", max=4, on="k8s", pods=Pods(image="registry/trainer:1")).pod_pool()
NAMED = PodPool("team-a")
ROOT = PoolNames("team-a").root
RUN = RunSpec("digits", "run-uid", ("true",), WorkersSpec(1, 1, 1), pool=PoolSpec("team-a"))


class Namespace(FakePlace):
    """Where a pool can be."""

    async def up(self) -> StandingPool:
        return await have_up(self.api, WANTED)

    async def mark(self, ago: float) -> None:
        """Somebody has begun to take the pool down, so many seconds ago."""
        since = time_to_text(utc_now() - timedelta(seconds=ago))
        await self.change(CONFIG_MAPS, ROOT, {"metadata": {"annotations": {ENDING: since}}})

    async def is_marked(self) -> bool:
        return ENDING in (await self.api.get(CONFIG_MAPS, ROOT)).annotations

    async def create(self, kind: Any, manifest: dict[str, Any]) -> Any:
        labels = {"labels": {}, "creationTimestamp": time_to_text(utc_now())}
        return await super().create(kind, {**manifest, "metadata": {**labels, **manifest["metadata"]}})

    async def lay_down(self, standing: StandingPool, confirming: Callable[[], Awaitable[None]]) -> Any:
        """A run of the pool."""
        return await creation.create(self.api, RUN, "me", standing.pods, {}, standing.place, confirming)


def scene(test: Callable[[Namespace], Awaitable[None]]) -> Callable[[pytest.MonkeyPatch], None]:
    def play(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pools, "PAUSE", 0.01)

        async def main() -> None:
            place = Namespace()
            monkeypatch.setattr(type(place.api), "serves", _serves)
            await test(place)

        asyncio.run(main())

    return play


async def _serves(*_: object) -> bool:
    return False


@scene
async def test_a_run_that_is_created_while_its_pool_is_taken_down_leaves_nothing(place: Namespace) -> None:
    standing = await place.up()

    async def meanwhile() -> None:
        assert (await place.api.find(CONFIG_MAPS, RUN.name)) is not None, "a task that takes it down could see the run"
        await place.mark(ago=0.1)
        await confirm(place.api, standing)

    with pytest.raises(Conflict, match="pool team-a is taken down"):
        await place.lay_down(standing, meanwhile)
    assert await place.api.find(CONFIG_MAPS, RUN.name) is None
    assert await place.api.list(JOBS) == []


@scene
async def test_a_pool_with_a_run_is_not_taken_down_and_is_usable_again(place: Namespace) -> None:
    standing = await place.up()
    await place.lay_down(standing, partial(confirm, place.api, standing))
    with pytest.raises(Conflict, match="pool team-a has runs: digits"):
        await pools._take_down(place.api, "team-a")
    assert not await place.is_marked()
    assert await have_up(place.api, NAMED) == standing


@scene
async def test_the_pool_of_a_run_is_not_another_one_of_that_name(place: Namespace) -> None:
    before = await place.up()
    await pools._take_down(place.api, "team-a")
    with pytest.raises(Conflict):
        await confirm(place.api, before)
    await begun_by_another(place)
    with pytest.raises(Conflict):
        await confirm(place.api, before)


@scene
async def test_a_task_waits_while_somebody_looks_whether_the_pool_has_runs(place: Namespace) -> None:
    standing = await place.up()
    await place.mark(ago=1.0)
    waiting = asyncio.create_task(have_up(place.api, NAMED))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await place.change(CONFIG_MAPS, ROOT, {"metadata": {"annotations": {ENDING: None}}})
    assert await waiting == standing


@pytest.mark.parametrize("mark", ["", "yesterday", "2026-11-29T12:00:00", time_to_text(utc_now() - timedelta(hours=1))])
def test_who_has_died_while_it_took_a_pool_down_holds_nobody_up(mark: str) -> None:
    async def main() -> None:
        place = Namespace()
        standing = await place.up()
        await place.change(CONFIG_MAPS, ROOT, {"metadata": {"annotations": {ENDING: mark}}})
        assert await have_up(place.api, NAMED) == standing

    asyncio.run(main())


async def begun_by_another(place: Namespace) -> None:
    """Another task has the root of the pool there, and no more."""
    made = await asyncio.to_thread(pools.pool_objects, WANTED, "another", place.api.namespace, pools.mutated)
    await place.create(CONFIG_MAPS, made.root())


@scene
async def test_who_waits_for_another_that_takes_the_pool_back_brings_it_up(place: Namespace) -> None:
    await begun_by_another(place)
    waiting = asyncio.create_task(place.up())
    named = asyncio.create_task(have_up(place.api, NAMED))
    await asyncio.sleep(0.05)
    await place.remove(CONFIG_MAPS, ROOT)
    assert (await waiting).place.uid != "another"
    with pytest.raises(InvalidSettings, match="pool team-a is not up"):
        await named


@pytest.mark.parametrize("answer", [RunNotFound("not found"), Conflict("another")])
def test_what_was_never_completed_is_deleted_by_one_of_those_that_wait(
    monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    async def deleted(*_: object) -> None:
        raise answer

    async def main() -> None:
        place = Namespace()
        await begun_by_another(place)
        with pytest.raises(ClusterUnavailable, match="was never completed"):
            await have_up(place.api, replace(WANTED))

    monkeypatch.setattr(pools, "COMING", 0.05)
    monkeypatch.setattr(pools, "PAUSE", 0.01)
    monkeypatch.setattr(pools, "_delete", deleted)
    asyncio.run(main())
