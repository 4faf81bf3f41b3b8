"""Pods that run out of memory are noticed, and get more: in place, or by another pod; in memory, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elastic_runtime.kubernetes.resources import PODS, REPLICA_SETS
from elastic_runtime.launcher.kubernetes.growing import IN_PLACE, grown, limit_of
from elastic_runtime.run.spec import RecoverySpec
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import Plain, Watched, lay_down, pod, replica_set, spec, surrounded
from tests.unit.runtime.kubernetes_platform_bench import MOMENT, NAMES

GI = 2**30
RUN = spec(recovery=RecoverySpec(grow_memory=1.5, up_to=64 * GI))
BURSTABLE = {"requests": {"memory": "4Gi"}, "limits": {"memory": "8Gi"}}
GUARANTEED = {side: {"memory": "8Gi", "cpu": "2"} for side in ("requests", "limits")}


def worker_pod(name: str, resources: Plain, *sidecars: Plain, **status: Any) -> Plain:
    made = pod(RUN, name, node="n1", phase="Running", **status)
    made["spec"]["containers"] = [{"name": "worker", "image": "i", "resources": resources}, *sidecars]
    return made


def ended(reason: str, at: str, state: str = "lastState") -> list[Plain]:
    """Status of a worker's container that has ended so; by default it was started again."""
    return [{"name": "worker", state: {"terminated": {"exitCode": 137, "reason": reason, "finishedAt": at}}}]


def within(
    test: Callable[[FakePlace, Watched], Awaitable[None]], run: Any = RUN, resources: Plain = BURSTABLE, **place: Any
) -> None:
    """With pods a and b of these resources, as their ReplicaSet has them."""

    async def main() -> None:
        made = FakePlace()
        for name, value in place.items():
            setattr(made, name, value)
        await lay_down(made, run, workers=False)
        workers = replica_set(run)
        workers["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
        await made.create(REPLICA_SETS, workers)
        for name in ("a", "b"):
            await made.create(PODS, worker_pod(name, resources))
        async with surrounded(made, run, asyncio.Event()) as watched:
            await asyncio.sleep(MOMENT)
            for name in ("a", "b"):
                watched.workers.came(name)
            await test(made, watched)
        assert len(asyncio.all_tasks()) == 1

    run_virtually(main())


async def settled(place: FakePlace, seconds: float = 3.0) -> dict[str, int | None]:
    """Limits of the pods in GiB, once everybody has heard."""
    await asyncio.sleep(seconds)
    return {each.name: (limit_of(each) or 0) // GI for each in await place.api.list(PODS)}


async def template(place: FakePlace) -> Plain:
    """Resources of pods to come."""
    found = await place.api.get(REPLICA_SETS, NAMES.worker)
    [container] = found.spec["template"]["spec"]["containers"]
    return dict(container["resources"])


def kubelet_has(memory: str) -> Plain:
    return {"status": {"containerStatuses": [{"name": "worker", "resources": {"limits": {"memory": memory}}}]}}


class TestGiving:
    def test_resizes_the_pod_in_place_and_those_to_come(self) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            await place.change(PODS, "a", kubelet_has("8Gi"))
            await asyncio.sleep(MOMENT)
            watched.workers.give_memory("a.r1", 12 * GI)
            await asyncio.sleep(MOMENT)
            assert watched.workers.memory_limit("a.r1") == 8 * GI, "what the kubelet has set"
            await place.change(PODS, "a", kubelet_has("12Gi"))
            assert await settled(place, 2 * IN_PLACE) == {"a": 12, "b": 8}
            assert watched.workers.memory_limit("a.r1") == 12 * GI
            assert await template(place) == {"requests": {"memory": "6Gi"}, "limits": {"memory": "12Gi"}}
            assert watched.workers.warnings() == ()

        within(test)

    @pytest.mark.parametrize("server", [{"resizes": False}, {"without": {"patch pods/resize"}}], ids=["old", "refuses"])
    def test_replaces_the_pod_where_it_cannot_be_resized(self, server: dict[str, Any]) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            watched.workers.give_memory("a", 12 * GI)
            assert await settled(place, 10.0) == {"b": 8}, "a ReplicaSet makes another from the template"
            assert (await template(place))["limits"] == {"memory": "12Gi"}

        within(test, **server)

    @pytest.mark.parametrize(("reason", "waits"), [("Infeasible", 1.0), ("Deferred", IN_PLACE + 1.0)])
    def test_replaces_the_pod_whose_node_has_no_room(self, reason: str, waits: float) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            pending = {"type": "PodResizePending", "status": "True", "reason": reason}
            changes = kubelet_has("8Gi")
            changes["status"]["conditions"] = [pending]
            await place.change(PODS, "a", changes)
            watched.workers.give_memory("a", 12 * GI)
            assert await settled(place, waits) == {"b": 8}

        within(test)

    def test_is_done_for_several_at_once(self) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            for name in ("a", "b"):
                await place.change(PODS, name, kubelet_has("8Gi"))
            await asyncio.sleep(MOMENT)
            for name in ("a", "b"):
                watched.workers.give_memory(name, 12 * GI)
            assert await settled(place, IN_PLACE + 3.0) == {}
            assert (await template(place))["limits"] == {"memory": "12Gi"}

        within(test)

    def test_keeps_the_quality_of_service(self) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            watched.workers.give_memory("a", 12 * GI)
            assert await settled(place) == {"a": 12, "b": 8}
            found = await place.api.get(PODS, "a")
            [worker] = found.spec["containers"]
            assert worker["resources"]["requests"] == worker["resources"]["limits"] == {"memory": "12Gi", "cpu": "2"}

        within(test, resources=GUARANTEED)

    def test_survives_an_api_server_that_is_away(self) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            await place.go_away()
            watched.workers.give_memory("a", 12 * GI)
            await asyncio.sleep(60)
            place.away = False
            assert await settled(place, 60) == {"a": 12, "b": 8}

        within(test)

    def test_of_a_pod_that_is_gone_is_for_those_to_come_alone(self) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            watched.workers.give_memory("a", 12 * GI)
            await place.remove(PODS, "a")
            assert await settled(place, IN_PLACE) == {"b": 8}
            assert (await template(place))["limits"] == {"memory": "12Gi"}
            assert watched.workers.can_give_memory()

        within(test)

    @pytest.mark.parametrize("right", ["patch replicasets", "delete pods"])
    def test_without_the_right_is_not_offered_and_a_warning_says_what_to_apply(self, right: str) -> None:
        async def test(_: FakePlace, watched: Watched) -> None:
            assert not watched.workers.can_give_memory()
            [words] = watched.workers.warnings()
            assert f"may not {right}" in words
            assert "deploy/rbac-grow-memory.yaml" in words
            assert watched.workers.warnings() == ()

        within(test, without={right})

    def test_is_not_looked_after_where_nobody_asked_for_it(self) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            assert not watched.workers.can_give_memory()
            assert watched.workers.warnings() == ()
            assert watched.workers.memory_limit("a") == 8 * GI

        within(test, spec(), without={"patch replicasets"})


class TestNoticing:
    def test_tells_of_each_end_once(self) -> None:
        async def test(place: FakePlace, watched: Watched) -> None:
            for at in ("2026-01-02T12:00:00Z", "2026-01-02T12:01:00Z"):
                for name, reason in (("a", "OOMKilled"), ("b", "Error")):
                    await place.change(PODS, name, {"status": {"containerStatuses": ended(reason, at)}})
                await asyncio.sleep(MOMENT)
                assert watched.workers.out_of_memory() == ("a",)
                await place.change(PODS, "a", {"metadata": {"annotations": {"any": at}}})
                await asyncio.sleep(MOMENT)
                assert watched.workers.out_of_memory() == ()

        within(test)

    def test_what_has_ended_before_this_launcher_was_there_is_another_ones(self) -> None:
        async def main() -> None:
            place = FakePlace()
            await lay_down(place, RUN)
            for state in ("state", "lastState"):
                status = ended("OOMKilled", "2026-01-02T12:00:00Z", state)
                await place.create(PODS, worker_pod(state.lower(), BURSTABLE, containerStatuses=status))
            async with surrounded(place, RUN, asyncio.Event()) as watched:
                await asyncio.sleep(MOMENT)
                assert watched.workers.out_of_memory() == ()

        run_virtually(main())


def test_other_containers_and_resources_stay() -> None:
    before = [
        {"name": "sidecar", "resources": {"limits": {"memory": "1Gi"}}},
        {"name": "worker", "resources": {"limits": {"memory": "8Gi", "nvidia.com/gpu": "1"}}},
    ]
    after = grown(before, 12 * GI)
    assert after[0] == before[0]
    assert after[1]["resources"] == {"limits": {"memory": "12Gi", "nvidia.com/gpu": "1"}}
    assert before[1]["resources"]["limits"]["memory"] == "8Gi"
    assert grown([{"name": "worker"}], GI) == [{"name": "worker"}], "no limit, none to grow"
