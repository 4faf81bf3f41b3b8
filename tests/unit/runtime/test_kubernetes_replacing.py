"""Pods on machines that will be taken are given up; in memory, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elastic_runtime.kubernetes.replacing import NODE_PAUSE, REDIAL
from elastic_runtime.kubernetes.resources import PODS, Kind
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import NOON, Watched, lay_down, pod, spec, surrounded

RUN = spec()
MOMENT = 0.1
DELETE = ("delete", PODS)


def within(
    test: Callable[[FakePlace, Watched], Awaitable[None]],
    forbidden: tuple[str, Kind[Any]] | None = None,
    connected: str = "abc",
) -> None:
    """With worker pods a and b on node n1, and c on n2."""

    async def main() -> None:
        place = FakePlace()
        place.forbidden = {forbidden} if forbidden else set()
        await lay_down(place, RUN)
        for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
            await place.create(PODS, pod(RUN, name, node=node, phase="Running"))
        async with surrounded(place, RUN, asyncio.Event()) as watched:
            await asyncio.sleep(MOMENT)
            for name in connected:
                watched.workers.came(name)
            await test(place, watched)
        assert len(asyncio.all_tasks()) == 1

    run_virtually(main())


async def pods(place: FakePlace) -> str:
    """Names, once everybody has heard."""
    await asyncio.sleep(MOMENT)
    return "".join(sorted(each.name for each in await place.api.list(PODS)))


def test_all_that_were_on_a_node_are_deleted_each_when_it_is_empty() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.workers.replace("a")
        assert await pods(place) == "bc"
        watched.workers.replace("b.r1")  # its agent has dialled twice
        assert await pods(place) == "c"

    within(test)


def test_one_that_is_put_on_the_same_node_stays_until_the_node_has_had_time_to_go() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.workers.replace("a")
        await place.create(PODS, pod(RUN, "d", node="n1", phase="Running"))
        await asyncio.sleep(MOMENT)
        watched.workers.replace("d")
        assert await pods(place) == "bcd"
        await asyncio.sleep(NODE_PAUSE)
        watched.workers.replace("d")
        assert await pods(place) == "bc"

    within(test)


def test_what_is_going_or_gone_or_nowhere_is_left_alone() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await place.create(PODS, pod(RUN, "g", node="n3", going=NOON, phase="Running"))
        await place.create(PODS, pod(RUN, "p", phase="Pending"))
        await asyncio.sleep(MOMENT)
        for name in ("g", "p", "unknown"):
            watched.workers.replace(name)
        assert await pods(place) == "abcgp"
        assert place.calls[DELETE] == 0

    within(test)


def test_it_is_done_when_the_api_server_is_back() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await place.go_away()
        watched.workers.replace("a")
        await asyncio.sleep(60)
        place.away = False
        await asyncio.sleep(60)
        assert await pods(place) == "bc"

    within(test)


def test_another_of_the_same_name_is_not_meant() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.workers.replace("a")
        await place.remove(PODS, "a")
        await place.create(PODS, pod(RUN, "a", node="n2", phase="Running"))
        assert await pods(place) == "abc"

    within(test)


def test_without_the_right_it_is_said_once_and_tried_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        for name in ("a", "c"):
            watched.workers.replace(name)
        await asyncio.sleep(3600)
        assert await pods(place) == "abc"
        assert place.calls[DELETE] < 4 * 15

    with caplog.at_level(logging.INFO):
        within(test, forbidden=DELETE)
    assert len([each for each in caplog.messages if "only when their machines are gone" in each]) == 1


def test_it_is_done_once_the_right_is_there() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.workers.replace("a")
        await asyncio.sleep(20)
        assert await pods(place) == "abc"
        place.forbidden = set()
        await asyncio.sleep(60)
        assert await pods(place) == "bc"

    within(test, forbidden=DELETE)


def test_a_pod_whose_agent_was_lost_is_deleted_and_not_let_in_again() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        assert "its pod is deleted" in watched.workers.end("a")
        watched.workers.end("a")
        assert await pods(place) == "abc"
        assert watched.workers.expects("a")
        await asyncio.sleep(REDIAL)
        assert await pods(place) == "bc"
        assert not watched.workers.expects("a")
        assert place.calls[DELETE] == 1

    within(test)


def test_one_whose_agent_connects_again_in_time_stays() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.workers.end("a")
        await asyncio.sleep(REDIAL / 2)
        watched.workers.came("a.r1")
        await asyncio.sleep(REDIAL)
        assert await pods(place) == "abc"
        assert watched.workers.expects("a")

    within(test)


def test_without_the_right_a_lost_agent_may_connect_again() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.workers.end("a")
        await asyncio.sleep(REDIAL + 60)
        assert await pods(place) == "abc"
        assert watched.workers.expects("a")

    within(test, forbidden=DELETE)


COMING = RUN.recovery.start_timeout


def test_a_pod_whose_agent_never_connects_is_deleted_and_an_event_says_so() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await asyncio.sleep(COMING - 1)
        assert await pods(place) == "abc"
        assert watched.workers.warnings() == ()
        await asyncio.sleep(1)
        assert await pods(place) == "ac"
        assert watched.workers.warnings() == (f"pod b is deleted: its agent has not connected for {COMING:.0f} s",)
        assert watched.workers.warnings() == ()
        assert not watched.workers.expects("b")

    within(test, connected="ac")


def test_an_agent_may_connect_before_there_is_news_of_its_pod() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        watched.workers.came("d")
        await place.create(PODS, pod(RUN, "d", node="n2", phase="Running"))
        await asyncio.sleep(COMING + 1)
        assert await pods(place) == "abcd"

    within(test)


def test_an_agent_that_has_left_has_as_long_to_connect_again() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await asyncio.sleep(2 * COMING)
        watched.workers.gone("a")
        watched.workers.gone("b.r1")
        await asyncio.sleep(COMING / 2)
        watched.workers.came("b.r2")
        await asyncio.sleep(COMING / 2)
        assert await pods(place) == "bc"

    within(test)


def test_a_pod_that_does_not_run_yet_is_not_waited_for() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await place.create(PODS, pod(RUN, "p", phase="Pending"))
        await asyncio.sleep(COMING + 1)
        assert await pods(place) == "abcp"

    within(test)


def test_without_the_right_a_pod_that_stays_is_told_of_once() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await asyncio.sleep(4 * COMING)
        assert await pods(place) == "abc"
        assert len(watched.workers.warnings()) == 1

    within(test, forbidden=DELETE, connected="ac")
