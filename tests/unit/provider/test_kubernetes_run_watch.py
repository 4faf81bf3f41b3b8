"""The watch of one run at an API server in memory, on virtual time. Real ones: tests/kubernetes/test_watch.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text
from elastic_runtime.errors import FailureKind
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS, PODS
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.kubernetes.watching import run_watch
from elastic_training.clusters.kubernetes.watching.hub import Hub
from elastic_training.clusters.types import Quiet, RunRef, StatusChanged, Update
from tests.unit.provider.kubernetes_objects import RUNNING, SPEC, TRAINS, job, labelled, map_of, pod, root_map
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace

REF = RunRef(SPEC.name, SPEC.uid)
POD = "run-launcher-a"
BEAT = 15.0


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """Each status that was made of the objects."""
    found: list[Status] = []
    judge = run_watch.judge

    def counted(*given: object) -> Status:
        found.append(judge(*given))  # type: ignore[arg-type]  # as it is called
        return found[-1]

    monkeypatch.setattr(run_watch, "judge", counted)
    return found


@asynccontextmanager
async def watched(place: FakePlace) -> AsyncIterator[list[Update]]:
    """What is told of a run that trains."""
    await place.create(CONFIG_MAPS, dict(root_map().raw))
    await place.create(CONFIG_MAPS, map_of(TRAINS))
    await place.create(JOBS, labelled(dict(job().raw), Part.LAUNCHER))
    await place.create(PODS, labelled(dict(pod(POD, phase="Running", state=RUNNING).raw), Part.LAUNCHER))
    hub = Hub(place.api)
    task = hub.start()
    told: list[Update] = []

    async def watch() -> None:
        with hub.subscribed(REF.name) as wake:
            async with aclosing(run_watch._Run(hub, REF, wake, None).updates(BEAT)) as updates:
                async for update in updates:
                    told.append(update)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(2)
    try:
        yield told
    finally:
        for each in (watching, task):
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each


def within(test: Callable[[FakePlace, list[Update]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with watched(place := FakePlace()) as told:
            assert told == [StatusChanged(TRAINS)]
            await test(place, told)

    run_virtually(main())


async def publish(place: FakePlace, status: Status) -> None:
    await place.change(CONFIG_MAPS, f"{SPEC.name}-status", map_of(status))


def test_nothing_is_judged_again_while_nothing_changes(judged: list[Status]) -> None:
    async def test(_: FakePlace, told: list[Update]) -> None:
        before = len(judged)
        await asyncio.sleep(100 * BEAT)
        assert len(judged) == before
        assert told[1:] == [Quiet()] * len(told[1:])
        assert len(told) > 90

    within(test)


def test_figures_are_told_in_passing() -> None:
    async def test(place: FakePlace, told: list[Update]) -> None:
        await publish(place, new := replace(TRAINS, step=5))
        await asyncio.sleep(2 * BEAT)
        assert StatusChanged(new) in told

    within(test)


@pytest.mark.parametrize("later", [0.0, 10 * BEAT])
def test_news_are_told_at_once(later: float) -> None:
    async def test(place: FakePlace, told: list[Update]) -> None:
        await asyncio.sleep(later)
        await publish(place, new := replace(TRAINS, world_size=3))
        await asyncio.sleep(0.5)
        assert told[-1] == StatusChanged(new)

    within(test)


def test_the_final_status_ends_it() -> None:
    async def test(place: FakePlace, told: list[Update]) -> None:
        await asyncio.sleep(10 * BEAT)
        await publish(place, final := replace(TRAINS, phase=Phase.SUCCEEDED, world_size=0))
        await asyncio.sleep(0.5)
        assert told[-1] == StatusChanged(final)

    within(test)


def test_a_launcher_that_has_gone_is_told_though_it_said_nothing() -> None:
    async def test(place: FakePlace, told: list[Update]) -> None:
        await asyncio.sleep(10 * BEAT)
        await place.remove(PODS, POD)
        await asyncio.sleep(5)
        assert isinstance(told[-1], StatusChanged)
        assert told[-1].status.failure is FailureKind.MAX_WAIT_EXCEEDED  # The status is years old.

    within(test)


def test_a_run_that_has_failed_by_its_job_is_told() -> None:
    async def test(place: FakePlace, told: list[Update]) -> None:
        await asyncio.sleep(10 * BEAT)
        await place.change(JOBS, "run-launcher", dict(job("Failed").raw))
        await asyncio.sleep(5)
        assert isinstance(told[-1], StatusChanged)
        assert told[-1].status.failure is FailureKind.LAUNCHER_LOST

    within(test)


def test_a_launcher_whose_deletion_is_due_is_judged_by_the_clock(judged: list[Status]) -> None:
    async def test(place: FakePlace, _: list[Update]) -> None:
        due = utc_now() + timedelta(hours=1)  # By the machine's clock, which does not jump.
        await place.change(PODS, POD, {"metadata": {"deletionTimestamp": time_to_text(due)}})
        await asyncio.sleep(BEAT)
        before = len(judged)
        await asyncio.sleep(10 * BEAT)
        assert len(judged) > before + 8

    within(test)
