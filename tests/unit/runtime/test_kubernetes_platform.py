"""The launcher's platform in a namespace, which is in memory; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from elastic_runtime.errors import OwnershipLost
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, PODS, REPLICA_SETS
from elastic_runtime.launcher.decision.facts import LeadershipState
from elastic_runtime.launcher.decision.sizing import SizeWish
from elastic_runtime.launcher.kubernetes.pods import OUTLIVING
from elastic_runtime.launcher.record.askers import Askers
from elastic_runtime.run.runobjects import CANCEL, JOIN_TOKENS, LEASE, REQUESTS, STACKS, WATCHED
from elastic_runtime.run.status import Phase
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import NOON, Watched, enter, lay_down, pod, published, spec, status
from tests.unit.runtime.kubernetes_platform_bench import MOMENT, NAMES, RUN, within


class TestSize:
    @pytest.mark.parametrize("replicas", [0, 1, 9])
    def test_is_that_of_the_replica_set(self, replicas: int) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            assert watched.platform.asked() == 2
            await place.scale(NAMES.worker, replicas)
            await asyncio.sleep(MOMENT)
            assert watched.platform.asked() == replicas
            assert watched.changes

        within(test)

    def test_is_not_known_while_there_is_no_replica_set(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await place.remove(REPLICA_SETS, NAMES.worker)
            await asyncio.sleep(MOMENT)
            assert watched.platform.asked() is None
            watched.platform.ask(3)

        within(test)

    @pytest.mark.parametrize("workers", [3, 0])
    def test_is_changed_by_the_launcher_itself(self, workers: int) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            watched.platform.ask(workers)
            watched.platform.ask(workers)
            await asyncio.sleep(MOMENT)
            assert watched.platform.asked() == workers

        within(test)

    def test_is_not_changed_over_somebody_elses_wish(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await place.scale(NAMES.worker, 4)  # Which the launcher has not seen yet.
            watched.platform.ask(3)
            await asyncio.sleep(MOMENT)
            assert watched.platform.asked() == 4

        within(test)


def test_a_pause_is_a_request_in_an_annotation_of_the_root() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        assert watched.platform.requests() is None
        asked = '[{"name":"p","workers":2,"pause":true}]'
        await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {REQUESTS: asked}}})
        await asyncio.sleep(MOMENT)
        assert Askers().newest(watched.platform.requests()) == SizeWish("p", 2, pause=True)
        assert watched.changes

    within(test)


def test_stacks_are_asked_for_by_an_annotation_of_the_root() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        assert watched.platform.stacks_asked() is None
        await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {STACKS: "1"}}})
        await asyncio.sleep(MOMENT)
        assert watched.platform.stacks_asked() == "1"
        assert watched.changes

    within(test)


class TestCancel:
    def test_is_an_annotation_of_the_root(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            assert watched.platform.cancel() is None
            await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {CANCEL: ""}}})
            await asyncio.sleep(MOMENT)
            assert watched.platform.cancel() == ""
            assert watched.changes

        within(test)

    @pytest.mark.parametrize("how", ["going", "gone", "another"])
    def test_is_the_roots_deletion(self, how: str) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            if how == "going":
                going = {"metadata": {"deletionTimestamp": "2026-01-02T12:00:00Z"}}
                await place.change(CONFIG_MAPS, RUN.name, going)
            else:
                await place.remove(CONFIG_MAPS, RUN.name)
            if how == "another":
                await place.remove(CONFIG_MAPS, NAMES.status)
                await lay_down(place, spec(uid="second"), workers=False)
            await asyncio.sleep(MOMENT)
            assert watched.platform.cancel() == "the run has been deleted"

        within(test)


class TestLease:
    def test_is_as_old_as_its_last_change_by_our_own_clock(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await asyncio.sleep(100)
            assert watched.platform.lease_age() == pytest.approx(100, abs=1)
            await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {"other": "x"}}})
            await asyncio.sleep(10)
            assert watched.platform.lease_age() == pytest.approx(110, abs=1)
            await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {LEASE: "two"}}})
            await asyncio.sleep(10)
            assert watched.platform.lease_age() == pytest.approx(10, abs=1)
            await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {LEASE: None}}})
            await asyncio.sleep(MOMENT)
            assert watched.platform.lease_age() is None

        within(test)

    def test_tells_whether_anybody_has_begun_to_watch(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await asyncio.sleep(MOMENT)
            for said, expected in (("", True), (None, False)):
                await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {WATCHED: said}}})
                await asyncio.sleep(MOMENT)
                assert watched.platform.watched() is expected

        within(test)

    def test_does_not_run_out_while_nobody_could_renew_it(self) -> None:
        async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
            await asyncio.sleep(100)
            await place.go_away()
            await asyncio.sleep(30_000)
            assert watched.platform.lease_age() == 0.0
            place.away = False
            await asyncio.sleep(60)
            age = watched.platform.lease_age()
            assert age is not None
            assert 40 <= age <= 60

        within(test)


class TestTenure:
    def test_ends_when_the_pod_is_taken(self) -> None:
        async def test(_: FakePlace, watched: Watched, taken: asyncio.Event) -> None:
            assert watched.platform.leadership() is LeadershipState.HELD
            taken.set()
            await asyncio.sleep(MOMENT)
            assert watched.platform.leadership() is LeadershipState.ENDING
            assert watched.changes

        within(test)

    def test_is_lost_to_a_newer_launcher_and_nothing_is_touched_any_more(self) -> None:
        async def test(place: FakePlace, watched: Watched, taken: asyncio.Event) -> None:
            newer = await enter(place, RUN, "pod-2")
            await newer.write(status(RUN, reason="mine"))
            watched.platform.publish(status(RUN, Phase.FAILED, "late"))
            await asyncio.sleep(MOMENT)
            assert watched.platform.leadership() is LeadershipState.LOST
            assert watched.changes
            taken.set()
            assert watched.platform.leadership() is LeadershipState.LOST
            with pytest.raises(OwnershipLost):
                await watched.platform.flush()
            assert await published(place, RUN) == status(RUN, reason="mine")

        within(test)


def test_keeps_quiet_and_up_to_date_through_cuts_and_a_forgetful_server(caplog: pytest.LogCaptureFixture) -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        for replicas in (3, 4, 3, 2):
            await place.scale(NAMES.worker, replicas)
            await (place.forget() if replicas == 3 else place.cut_watches())
            await asyncio.sleep(5)
            assert watched.platform.asked() == replicas

    within(test)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_costs_little_while_nothing_happens() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        await place.create(PODS, pod(RUN, "a", phase="Running"))
        watched.workers.came("a")
        watched.platform.publish(status(RUN))
        await asyncio.sleep(MOMENT)
        place.calls.clear()
        for second in range(600):
            watched.platform.publish(replace(status(RUN), updated=NOON + timedelta(seconds=second)))
            await asyncio.sleep(1)
        assert sum(place.calls.values()) == 0

    within(test)


def test_a_machine_that_joined_is_in_no_pod_and_none_is_ended_for_it() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        await asyncio.sleep(MOMENT)
        for name in ("joined-1", "joined-1.r1"):
            watched.workers.came(name)
            assert watched.workers.stray(name) is None
            await asyncio.sleep(2 * OUTLIVING)
            assert watched.workers.stray(name) is None
            assert watched.workers.end(name) == "what is left of it on its machine stays"
            watched.workers.gone(name)
        assert watched.workers.warnings() == ()

    within(test)


def test_tokens_to_join_are_the_roots() -> None:
    async def test(place: FakePlace, watched: Watched, _: asyncio.Event) -> None:
        assert watched.platform.join_tokens() is None
        await place.change(CONFIG_MAPS, NAMES.root, {"metadata": {"annotations": {JOIN_TOKENS: "{}"}}})
        await asyncio.sleep(MOMENT)
        assert watched.platform.join_tokens() == "{}"

    within(test)
