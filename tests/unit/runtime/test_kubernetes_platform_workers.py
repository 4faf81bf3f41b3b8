"""The workers of the launcher's platform in a namespace, and its end; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from elastic_runtime.kubernetes.resources import CONFIG_MAPS, EVENTS, NODES, PODS, REPLICA_SETS
from elastic_runtime.launcher.kubernetes.platform import LAST_WRITE
from elastic_runtime.launcher.kubernetes.workers import END_TIMEOUT
from elastic_runtime.launcher.platform import Machine
from elastic_runtime.run.runobjects import LEASE
from elastic_runtime.run.spec import JupyterSpec
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import (
    NOON,
    Watched,
    lay_down,
    pod,
    published,
    replica_set,
    spec,
    status,
    surrounded,
)
from tests.unit.runtime.kubernetes_platform_bench import MOMENT, NAMES, RUN, within


class TestWorkers:
    def test_have_the_deadline_of_their_pod_whatever_they_are_called(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await place.create(PODS, pod(RUN, "a", phase="Running"))
            await asyncio.sleep(MOMENT)
            assert watched.workers.deadline("a") is None
            watched.changes.clear()
            soon = NOON + timedelta(seconds=30)
            await place.change(PODS, "a", {"metadata": {"deletionTimestamp": "2026-01-02T12:00:30Z"}})
            await asyncio.sleep(MOMENT)
            assert [watched.workers.deadline(name) for name in ("a", "a.r2", "b")] == [soon, soon, None]
            assert watched.changes

        within(test)

    def test_run_on_machines_as_far_as_one_may_look(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await place.create(
                NODES,
                {"metadata": {"name": "n1", "labels": {"karpenter.sh/capacity-type": "spot"}}},
            )
            for name, node in (("a", "n1"), ("b", "n2"), ("c", "")):
                await place.create(PODS, pod(RUN, name, node=node, phase="Running"))
            await asyncio.sleep(10)
            machines = [watched.workers.machine(name) for name in ("a", "a.r1", "b", "c", "d")]
            assert machines == [Machine("spot"), Machine("spot"), None, None, None]

        within(test)

    def test_without_the_right_are_looked_at_ever_less_often(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            place.forbidden = {("list", NODES), ("list", EVENTS)}
            creating = [{"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}]
            await place.create(PODS, pod(RUN, "a", node="n1", containerStatuses=creating))
            await asyncio.sleep(3600)
            assert watched.workers.machine("a") is None
            assert 4 < place.calls["list", NODES] <= 4 * 60
            assert 4 < place.calls["list", EVENTS] <= 60

        with caplog.at_level(logging.INFO):
            within(test)
        [told] = [each for each in caplog.messages if "instance types of the workers' nodes are not read" in each]
        assert "deploy/rbac-nodes.yaml" in told

    def test_are_looked_at_once_the_right_is_there(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            place.forbidden = {("list", NODES), ("list", EVENTS)}
            creating = [{"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}]
            await place.create(NODES, {"metadata": {"name": "n1", "labels": {"karpenter.sh/capacity-type": "spot"}}})
            made = await place.create(PODS, pod(RUN, "a", node="n1", containerStatuses=creating))
            event = {"metadata": {"name": "e"}, "involvedObject": {"uid": made.uid}, "type": "Warning"}
            await place.create(EVENTS, event | {"reason": "FailedMount", "message": 'secret "keys" not found'})
            await asyncio.sleep(20)
            assert (watched.workers.machine("a"), watched.workers.refusal()) == (None, None)
            place.forbidden = set()
            await asyncio.sleep(60)
            assert watched.workers.machine("a") == Machine("spot")
            refusal = watched.workers.refusal()
            assert refusal is not None
            assert 'FailedMount: secret "keys" not found' in refusal.words

        within(test)

    def test_that_are_refused_are_told_of_once_and_while_they_are(self, caplog: pytest.LogCaptureFixture) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}

        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            for name in ("a", "b"):
                await place.create(PODS, pod(RUN, name, conditions=[condition]))
                await asyncio.sleep(MOMENT)
            refusal = watched.workers.refusal()
            assert refusal is not None
            assert refusal.words.startswith("Kubernetes says of worker pod a and 1 more: Unschedulable: no room. ")
            for name in ("a", "b"):
                await place.change(PODS, name, {"status": {"conditions": None, "phase": "Running"}})
            await asyncio.sleep(MOMENT)
            assert watched.workers.refusal() is None

        within(test)
        assert len([each for each in caplog.messages if "Unschedulable" in each]) == 1

    def test_that_are_stuck_are_told_of_by_their_events(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            creating = [{"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}]
            made = await place.create(PODS, pod(RUN, "a", containerStatuses=creating))
            event = {
                "metadata": {"name": "e"},
                "involvedObject": {"uid": made.uid},
                "type": "Warning",
                "reason": "FailedMount",
                "message": 'secret "keys" not found',
            }
            await place.create(EVENTS, event)
            await asyncio.sleep(10)
            refusal = watched.workers.refusal()
            assert refusal is not None
            assert refusal.hopeless
            assert 'FailedMount: secret "keys" not found' in refusal.words

        within(test)


class TestEnd:
    def test_sends_the_workers_home_and_waits_for_them(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await place.create(PODS, pod(RUN, "a", phase="Running"))
            await place.create(PODS, pod(RUN, "evicted", phase="Failed"))
            ending = asyncio.create_task(watched.platform.end_workers())
            await asyncio.sleep(5)
            assert not ending.done()
            found = await place.api.get(REPLICA_SETS, NAMES.worker)
            assert found.spec["replicas"] == 0
            await place.remove(PODS, "a")
            await ending
            assert asyncio.get_running_loop().time() < 6

        within(test)

    @pytest.mark.parametrize("what", ["there", "gone", "no right"])
    def test_ends_jupyter_too_and_is_not_harmed_by_it(self, what: str, caplog: pytest.LogCaptureFixture) -> None:
        run = spec(jupyter=JupyterSpec("notebook/key"))

        async def main() -> None:
            place = FakePlace()
            await lay_down(place, run)
            if what != "gone":
                beside = replica_set(run, 1)
                beside["metadata"]["name"] = NAMES.jupyter
                await place.create(REPLICA_SETS, beside)
            async with surrounded(place, run, asyncio.Event()) as watched:
                if what == "no right":
                    place.forbidden = {("patch", REPLICA_SETS)}
                await watched.platform.end_workers()
                if what == "there":
                    for name in (NAMES.worker, NAMES.jupyter):
                        assert (await place.api.get(REPLICA_SETS, name)).spec["replicas"] == 0

        with caplog.at_level(logging.INFO):
            run_virtually(main())
        assert f"kubectl port-forward service/{NAMES.jupyter} 8888 --namespace" in caplog.text

    def test_does_not_wait_for_a_dead_node_for_ever(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await place.create(PODS, pod(RUN, "a", phase="Running"))
            await asyncio.sleep(MOMENT)
            begun = asyncio.get_running_loop().time()
            await watched.platform.end_workers()
            assert asyncio.get_running_loop().time() - begun == pytest.approx(END_TIMEOUT)

        within(test)
        assert "these worker pods have not ended in time: a" in caplog.messages

    @pytest.mark.parametrize("what", ["away", "no replica set", "no right"])
    def test_of_workers_copes_with(self, what: str) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            if what == "away":
                await place.go_away()
                asyncio.get_running_loop().call_later(600, setattr, place, "away", False)
            elif what == "no right":
                place.forbidden = {("patch", REPLICA_SETS)}
            else:
                await place.remove(REPLICA_SETS, NAMES.worker)
            await watched.platform.end_workers()
            assert (asyncio.get_running_loop().time() > 600) == (what == "away")

        within(test)

    def test_writes_what_is_left_to_write_if_it_can_soon(self) -> None:
        async def main(away: bool) -> None:
            place = FakePlace()
            await lay_down(place, RUN)
            async with surrounded(place, RUN, asyncio.Event()) as watched:
                watched.platform.publish(status(RUN, reason="first"))
                await asyncio.sleep(MOMENT)
                watched.platform.publish(status(RUN, reason="last"))
                place.away = away
                begun = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - begun <= LAST_WRITE + MOMENT
            place.away = False
            assert await published(place, RUN) == status(RUN, reason="first" if away else "last")

        run_virtually(main(away=False))
        run_virtually(main(away=True))


class TestAbandoned:
    def test_is_deleted(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await place.change(CONFIG_MAPS, RUN.name, {"data": {"more": "since we looked"}})
            await watched.platform.abandon()
            assert await place.api.find(CONFIG_MAPS, RUN.name) is None

        within(test)

    @pytest.mark.parametrize("who", ["waits after all", "has made it anew", "has deleted it", "is away"])
    def test_is_not_deleted_when_somebody(self, who: str) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            if who == "waits after all":
                renewed = {"metadata": {"annotations": {LEASE: "two"}}}
                await place.change(CONFIG_MAPS, RUN.name, renewed)
            elif who == "is away":
                place.away = True
            else:
                await place.remove(CONFIG_MAPS, RUN.name)
                if who == "has made it anew":
                    await place.remove(CONFIG_MAPS, NAMES.status)
                    await lay_down(place, spec(uid="second"), workers=False)
            await watched.platform.abandon()
            place.away = False
            found = await place.api.find(CONFIG_MAPS, RUN.name)
            assert (found is None) == (who == "has deleted it")

        within(test)
