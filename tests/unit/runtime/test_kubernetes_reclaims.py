"""Deadlines of worker pods, from pods and nodes in memory; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from elastic_runtime.kubernetes.nodes import ENDING_TAINTS as TAINTS
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.resources import NODES, PODS
from elastic_runtime.launcher.kubernetes import reclaims as module
from elastic_runtime.launcher.kubernetes.reclaims import pod_deadline
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import NOON, Watched, lay_down, pod, spec, surrounded

RUN = spec()
MOMENT = 0.1
SPOT = "aws-node-termination-handler/spot-itn"


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def condition(reason: str, status: str = "True", kind: str = "DisruptionTarget") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-01-02T12:00:00Z"}


@pytest.mark.parametrize(
    ("which", "deadline"),
    [
        (pod(RUN, "a"), None),
        (pod(RUN, "a", going=after(45)), after(45)),
        (pod(RUN, "a", conditions=[condition("TerminationByKubelet")]), after(15)),
        (pod(RUN, "a", conditions=[condition("EvictionByEvictionAPI")]), None),
        (pod(RUN, "a", conditions=[condition("TerminationByKubelet", "False")]), None),
        (pod(RUN, "a", conditions=[condition("", kind="Ready")]), None),
        (pod(RUN, "a", going=after(45), conditions=[condition("EvictionByEvictionAPI")]), after(45)),
    ],
)
def test_a_pod_says_itself_when_it_will_be_gone(which: dict[str, Any], deadline: datetime | None) -> None:
    assert pod_deadline(Pod(which)) == deadline


def within(test: Callable[[FakePlace, Watched], Awaitable[None]], *nodes: str) -> None:
    """With worker pods a, b … on these nodes."""

    async def main() -> None:
        place = FakePlace()
        await lay_down(place, RUN)
        for node in sorted(set(nodes)):
            await place.create(NODES, {"metadata": {"name": node}, "spec": {}})
        for name, node in zip("abcdef", nodes, strict=False):
            await place.create(PODS, pod(RUN, name, node=node, phase="Running"))
        async with surrounded(place, RUN, asyncio.Event()) as watched:
            await asyncio.sleep(MOMENT)
            watched.changes.clear()
            await test(place, watched)
        assert len(asyncio.all_tasks()) == 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Reclaims.__init__, "__defaults__", (lambda: NOON,))
        run_virtually(main())


async def taint(place: FakePlace, node: str, *keys: str) -> None:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    await place.change(NODES, node, {"spec": {"taints": taints}})
    await asyncio.sleep(MOMENT)


@pytest.mark.parametrize("key", TAINTS)
def test_a_taint_announces_the_end_of_all_pods_on_its_node(key: str) -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await taint(place, "n1", "dedicated", key)
        deadlines = [watched.workers.deadline(name) for name in ("a", "a.r1", "b", "c")]
        end = NOON + TAINTS[key]
        assert deadlines == [end, end, None, end]
        assert watched.changes

    within(test, "n1", "n2", "n1")


@pytest.mark.parametrize("key", ["node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready", "dedicated"])
def test_a_node_that_may_stay_announces_nothing(key: str) -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await taint(place, "n1", key)
        assert watched.workers.deadline("a") is None

    within(test, "n1")


def test_the_earliest_word_counts_and_one_that_is_taken_back_does_not() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await taint(place, "n1", "karpenter.sh/disrupted", "cloud.google.com/impending-node-termination")
        assert watched.workers.deadline("a") == after(15)
        await place.change(PODS, "a", {"metadata": {"deletionTimestamp": "2026-01-02T12:00:10Z"}})
        await asyncio.sleep(MOMENT)
        assert watched.workers.deadline("a") == after(10)
        assert watched.workers.deadline("b") == after(15)
        await taint(place, "n1")
        assert watched.workers.deadline("b") is None

    within(test, "n1", "n1")


def test_nodes_are_watched_while_there_are_pods_on_them() -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        assert place.calls["watch", NODES] == 1
        await place.create(NODES, {"metadata": {"name": "n2"}, "spec": {}})
        await place.create(PODS, pod(RUN, "z", node="n2", phase="Running"))
        await asyncio.sleep(MOMENT)
        assert place.calls["watch", NODES] == 2
        await taint(place, "n2", SPOT)
        assert watched.workers.deadline("z") == after(120)
        await place.remove(PODS, "z")
        await asyncio.sleep(MOMENT)
        watched.changes.clear()
        await taint(place, "n2")
        assert watched.changes == []

    within(test, "n1")


def test_news_are_caught_up_with_after_the_api_server_was_away(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: FakePlace, watched: Watched) -> None:
        await place.go_away()
        await asyncio.sleep(60)
        place.away = False
        await taint(place, "n1", SPOT)
        await asyncio.sleep(60)
        assert watched.workers.deadline("a") == after(120)

    with caplog.at_level(logging.INFO):
        within(test, "n1")
    assert not [each for each in caplog.messages if "nodes" in each], "others have said that it is away"


def test_without_the_right_it_is_asked_for_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        place = FakePlace()
        place.forbidden = {("list", NODES), ("get", NODES)}
        await lay_down(place, RUN)
        for name in ("a", "b"):
            await place.create(PODS, pod(RUN, name, node=f"n-{name}", going=after(30), phase="Running"))
        async with surrounded(place, RUN, asyncio.Event()) as watched:
            await asyncio.sleep(3600)
            assert watched.workers.deadline("a") == after(30)
            assert place.calls["list", NODES] < 2 * 4 * 15

    with caplog.at_level(logging.INFO):
        run_virtually(main())
    assert len([each for each in caplog.messages if "nodes are not read" in each]) == 1


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_nodes_are_watched_once_the_right_is_there(verb: str) -> None:
    async def main() -> None:
        place = FakePlace()
        place.forbidden = {(verb, NODES)}
        await lay_down(place, RUN)
        await place.create(NODES, {"metadata": {"name": "n1"}, "spec": {}})
        await place.create(PODS, pod(RUN, "a", node="n1", phase="Running"))
        async with surrounded(place, RUN, asyncio.Event()) as watched:
            await asyncio.sleep(20)
            place.forbidden = set()
            await asyncio.sleep(60)
            await taint(place, "n1", SPOT)
            assert watched.workers.deadline("a") is not None

    run_virtually(main())


def test_not_more_nodes_are_watched_than_connections_allow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 2)

    async def test(place: FakePlace, watched: Watched) -> None:
        assert place.calls["watch", NODES] == 2
        await place.remove(PODS, "a")
        await asyncio.sleep(MOMENT)
        assert place.calls["watch", NODES] == 3

    with caplog.at_level(logging.INFO):
        within(test, "n1", "n2", "n3", "n4")
    assert len([each for each in caplog.messages if "of 2 nodes only" in each]) == 1
