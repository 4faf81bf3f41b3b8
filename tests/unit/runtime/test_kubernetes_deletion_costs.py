"""Kubernetes is told which worker costs least to lose; in memory, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from elastic_runtime.kubernetes.deletion_costs import COST, PAUSE
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.launcher.kubernetes.workers import costs
from elastic_runtime.run.status import Status, WorkerState, WorkerStatus
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import NOON, Watched, lay_down, pod, spec, surrounded
from tests.unit.runtime.kubernetes_bench import status as status_of

RUN = spec()
MOMENT = 0.1
PATCH = ("patch", PODS)
TRAINING, READY, LEAVING = WorkerState.TRAINING, WorkerState.READY, WorkerState.LEAVING


def worker(name: str, state: WorkerState, *ranks: int) -> WorkerStatus:
    return WorkerStatus(name, "node", state, NOON, 1, ranks)


def status(*workers: WorkerStatus) -> Status:
    return status_of(RUN, workers=workers)


def test_one_that_goes_anyway_costs_least_and_the_writer_of_checkpoints_most() -> None:
    workers = (
        worker("gone", WorkerState.LOST, 3),
        worker("idle", READY),
        worker("first.r1", TRAINING, 0),
        worker("other", TRAINING, 1, 2),
        worker("noticed", LEAVING, 3),
        worker("new", WorkerState.STARTING),
    )
    found = costs(status(*workers))
    assert sorted(found, key=lambda name: found[name]) == ["noticed", "idle", "new", "other", "first"]
    assert (found["idle"], found["new"]) == (0, 0), "as Kubernetes takes those that were told nothing"


def within(test: Callable[[FakePlace, Watched], Awaitable[None]], *, forbidden: bool = False) -> None:
    """With worker pods a, b and c."""

    async def main() -> None:
        place = FakePlace()
        place.forbidden = {PATCH} if forbidden else set()
        await lay_down(place, RUN)
        for name in "abc":
            await place.create(PODS, pod(RUN, name, node="n1", phase="Running"))
        async with surrounded(place, RUN, asyncio.Event()) as watched:
            await asyncio.sleep(MOMENT)
            await test(place, watched)

    run_virtually(main())


async def told(place: FakePlace) -> dict[str, str | None]:
    return {each.name: each.annotations.get(COST) for each in await place.api.list(PODS)}


def test_pods_are_told_what_has_changed_and_no_more() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        world = status(worker("a", TRAINING, 0), worker("b", TRAINING, 1), worker("c", READY))
        for _ in range(5):
            watched.platform.publish(world)
            await asyncio.sleep(PAUSE)
        assert await told(place) == {"a": "200", "b": "100", "c": None}
        assert place.calls[PATCH] == 2
        watched.platform.publish(status(worker("a", LEAVING, 0), worker("b", TRAINING, 1), worker("gone", READY)))
        watched.platform.publish(status(worker("a", LEAVING), worker("b", TRAINING, 0), worker("c", TRAINING, 1)))
        await asyncio.sleep(2 * PAUSE)
        assert await told(place) == {"a": "-100", "b": "200", "c": "100"}
        assert place.calls[PATCH] == 5

    within(test)


def test_it_is_told_when_the_api_server_is_back() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await place.go_away()
        watched.platform.publish(status(worker("a", TRAINING, 0)))
        await asyncio.sleep(60)
        place.away = False
        await asyncio.sleep(60)
        assert (await told(place))["a"] == "200"

    within(test)


def test_without_the_right_it_is_said_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.platform.publish(status(worker("a", TRAINING, 0)))
        await asyncio.sleep(60)
        asked = place.calls[PATCH]
        for name in "bc":
            watched.platform.publish(status(worker(name, TRAINING, 0)))
            await asyncio.sleep(60)
        assert place.calls[PATCH] == asked
        assert set((await told(place)).values()) == {None}

    with caplog.at_level(logging.INFO):
        within(test, forbidden=True)
    assert len([each for each in caplog.messages if "deploy/rbac-deletion-cost.yaml" in each]) == 1
