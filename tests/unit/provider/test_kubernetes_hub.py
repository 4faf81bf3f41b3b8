"""The watch of a namespace, at an API server in memory; on virtual time. Real ones: tests/kubernetes/test_watch.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from elastic_runtime.errors import MissingRight
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS
from elastic_training.clusters.kubernetes.watching.hub import Hub
from elastic_training.clusters.types import RunRef
from tests.unit.provider.kubernetes_objects import SPEC, TRAINS, map_of, root_map
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace

REF = RunRef(SPEC.name, SPEC.uid)
MOMENT = 0.1


@asynccontextmanager
async def watched(place: FakePlace) -> AsyncIterator[Hub]:
    hub = Hub(place.api)
    task = hub.start()
    try:
        await asyncio.sleep(MOMENT)
        yield hub
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def within(test: Callable[[FakePlace, Hub], Awaitable[None]], *forbidden: tuple[str, object]) -> None:
    async def main() -> None:
        place = FakePlace()
        place.forbidden = set(forbidden)  # type: ignore[arg-type]
        await place.create(CONFIG_MAPS, dict(root_map().raw))
        await place.create(CONFIG_MAPS, map_of(TRAINS))
        async with watched(place) as hub:
            await test(place, hub)
        assert len(asyncio.all_tasks()) == 1

    run_virtually(main())


def test_what_only_counts_on_wakes_nobody() -> None:
    async def test(place: FakePlace, hub: Hub) -> None:
        with hub.subscribed(REF.name) as wake:
            for status, wakes in ((replace(TRAINS, step=5), False), (replace(TRAINS, world_size=3), True)):
                await place.change(CONFIG_MAPS, f"{SPEC.name}-status", map_of(status))
                await asyncio.sleep(MOMENT)
                assert wake.is_set() == wakes
                found = hub.status_map(REF)
                assert found is not None
                assert found.data == map_of(status)["data"]

    within(test)


def test_a_refusal_is_told_to_whoever_waits_and_may_pass() -> None:
    async def test(place: FakePlace, hub: Hub) -> None:
        with hub.subscribed(REF.name) as wake:
            await asyncio.sleep(5)
            assert wake.is_set()
            assert not hub.current
            with pytest.raises(MissingRight, match=r"list jobs: deploy/rbac\.yaml"):
                hub.check()
            place.forbidden = set()
            await asyncio.sleep(10)
            hub.check()
            assert hub.current
            found = hub.root(REF)
            assert found is not None
            assert found.ref == REF

    within(test, ("list", JOBS))
