"""What the launcher relies on at an API server. Run on the fake one here, and on real ones in ``tests/kubernetes``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any
from uuid import uuid4

import pytest

from elastic_runtime.errors import Conflict, InvalidDocument, InvalidSettings, OwnershipLost, RunNotFound, WatchExpired
from elastic_runtime.kubernetes.client import Change, ChangeKind
from elastic_runtime.kubernetes.errors import AlreadyExists
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, NODES, PODS, REPLICA_SETS, Kind
from elastic_runtime.kubernetes.tokens import Bound, key_id, read_keys, verify
from elastic_runtime.launcher.kubernetes.growing import grown, limit_of
from elastic_runtime.launcher.kubernetes.leadership import read_spec, take_over, term_of
from elastic_runtime.run.runobjects import SPEC_KEY, ObjectNames, Part, labels, selector
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase
from tests.unit.runtime.kubernetes_bench import (
    NOON,
    Place,
    Plain,
    config_map,
    enter,
    lay_down,
    published,
    replica_set,
    spec,
    status,
)

WATCH_TIMEOUT = 20.0
Opens = Callable[[], AbstractAsyncContextManager[Place]]


class Contract:
    """Subclasses give a fixture ``opens``, which opens a namespace."""

    def run(self, opens: Opens, test: Callable[[Place], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(WATCH_TIMEOUT), opens() as place:
                await test(place)

        asyncio.run(main())


def a_run() -> Any:
    """Of its own name and uid."""
    return spec(f"run-{uuid4().hex[:8]}", uuid4().hex)


async def until_changed(changes: AsyncIterator[Change[Object]], kind: ChangeKind) -> Change[Object]:
    """The next change of this kind."""
    async for change in changes:
        if change.kind is kind:
            return change
    raise AssertionError(f"the watch has ended without a change of kind {kind}")


class TestObjects(Contract):
    def test_are_read_as_they_were_created(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            made = await place.create(CONFIG_MAPS, config_map(run, run.name, Part.ROOT, {"a": "1"}))
            found = await place.api.get(CONFIG_MAPS, run.name)
            assert (found.name, found.uid, found.version) == (run.name, made.uid, made.version)
            assert found.data == {"a": "1"}

        self.run(opens, test)

    def test_are_not_created_twice(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            made = await place.create(CONFIG_MAPS, config_map(run, run.name, Part.ROOT, {"a": "1"}))
            with pytest.raises(AlreadyExists, match="already exists"):
                await place.api.create(CONFIG_MAPS, config_map(run, run.name, Part.ROOT, {"a": "2"}))
            assert await place.api.get(CONFIG_MAPS, run.name) == made

        self.run(opens, test)

    @pytest.mark.parametrize("kind", [CONFIG_MAPS, REPLICA_SETS, PODS, NODES])
    def test_that_are_not_there_are_missed(self, opens: Opens, kind: Kind[Any]) -> None:
        async def test(place: Place) -> None:
            with pytest.raises(RunNotFound, match="not found"):
                await place.api.get(kind, "nobody")

        self.run(opens, test)

    def test_are_merged_with_a_patch(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            made = await place.create(CONFIG_MAPS, config_map(run, run.name, Part.ROOT, {"a": "1", "b": "2"}))
            patch = {"metadata": {"annotations": {"x": "y"}}, "data": {"a": None, "c": "ü\n"}}
            changed = await place.api.patch(CONFIG_MAPS, run.name, patch)
            assert changed.data == {"b": "2", "c": "ü\n"}
            assert changed.annotations["x"] == "y"
            assert changed.version != made.version
            assert await place.api.get(CONFIG_MAPS, run.name) == changed

        self.run(opens, test)

    @pytest.mark.parametrize("wrong", ["uid", "resourceVersion"])
    def test_are_changed_only_as_those_they_were_taken_for(self, opens: Opens, wrong: str) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            made = await place.create(CONFIG_MAPS, config_map(run, run.name, Part.ROOT, {"a": "1"}))
            await place.change(CONFIG_MAPS, run.name, {"data": {"a": "2"}})
            now = await place.api.get(CONFIG_MAPS, run.name)
            right = {"uid": now.uid, "resourceVersion": now.version}
            bad = {**right, wrong: {"uid": "00000000-0000", "resourceVersion": made.version}[wrong]}
            with pytest.raises(Conflict):
                await place.api.patch(CONFIG_MAPS, run.name, {"metadata": bad, "data": {"a": "3"}})
            await place.api.patch(CONFIG_MAPS, run.name, {"metadata": right, "data": {"a": "4"}})

        self.run(opens, test)

    def test_are_deleted_in_whatever_version(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            made = await place.create(CONFIG_MAPS, config_map(run, run.name, Part.ROOT, {"a": "1"}))
            await place.change(CONFIG_MAPS, run.name, {"data": {"a": "2"}})
            with pytest.raises(Conflict):
                await place.api.delete(CONFIG_MAPS, run.name, uid="00000000-0000")
            found = await place.api.listing(CONFIG_MAPS, selector(run=run.name))
            async with place.api.watch(CONFIG_MAPS, found.version, selector(run=run.name)) as seen:
                await place.api.delete(CONFIG_MAPS, run.name, uid=made.uid)
                await until_changed(seen, ChangeKind.DELETED)

        self.run(opens, test)

    @pytest.mark.parametrize("wrong", ["uid", "version"])
    def test_are_deleted_only_as_those_they_were_taken_for(self, opens: Opens, wrong: str) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            made = await place.create(CONFIG_MAPS, config_map(run, run.name, Part.ROOT, {"a": "1"}))
            await place.change(CONFIG_MAPS, run.name, {"data": {"a": "2"}})
            now = await place.api.get(CONFIG_MAPS, run.name)
            right = {"uid": now.uid, "version": now.version}
            bad = {**right, wrong: {"uid": "00000000-0000", "version": made.version}[wrong]}
            with pytest.raises(Conflict):
                await place.api.delete(CONFIG_MAPS, run.name, **bad)
            found = await place.api.listing(CONFIG_MAPS, selector(run=run.name))
            async with place.api.watch(CONFIG_MAPS, found.version, selector(run=run.name)) as seen:
                await place.api.delete(CONFIG_MAPS, run.name, **right)
                await until_changed(seen, ChangeKind.DELETED)

        self.run(opens, test)

    def test_are_scaled(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            await place.create(REPLICA_SETS, replica_set(run, 0))
            name = ObjectNames(run.name).worker
            await place.api.patch(REPLICA_SETS, name, {"spec": {"replicas": 3}}, "scale")
            found = await place.api.list(REPLICA_SETS, fields=f"metadata.name={name}")
            assert [each.spec["replicas"] for each in found] == [3]
            await place.api.patch(REPLICA_SETS, name, {"spec": {"replicas": 0}}, "scale")
            with pytest.raises(RunNotFound):
                await place.api.patch(REPLICA_SETS, "nobody", {"spec": {"replicas": 0}}, "scale")

        self.run(opens, test)

    def test_take_another_template_and_pods_other_resources_in_place_where_that_is_served(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            made = replica_set(run, 0)
            [container] = made["spec"]["template"]["spec"]["containers"]
            container["resources"] = {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}
            await place.create(REPLICA_SETS, made)
            first = await place.api.get(REPLICA_SETS, ObjectNames(run.name).worker)
            more = grown(first.spec["template"]["spec"]["containers"], 3 * 2**30)
            changes = {"spec": {"template": {"spec": {"containers": more}}}}
            changed = await place.api.patch(REPLICA_SETS, first.name, changes)
            [now] = changed.spec["template"]["spec"]["containers"]
            assert now["resources"] == {"requests": {"memory": "1536Mi"}, "limits": {"memory": "3Gi"}}
            stale = {"metadata": {"resourceVersion": first.version}, **changes}
            with pytest.raises(Conflict):
                await place.api.patch(REPLICA_SETS, first.name, stale)
            assert await place.api.may("apps", "replicasets", "patch")

            asked = bare_pod(run)
            asked["spec"]["containers"][0]["resources"] = container["resources"]
            pod = await place.create(PODS, asked)
            uid = {"metadata": {"uid": pod.uid}}
            larger = {**uid, "spec": {"containers": grown(pod.spec["containers"], 3 * 2**30)}}
            with pytest.raises(InvalidSettings):
                await place.api.patch(PODS, pod.name, larger)
            try:
                resized = await place.api.patch(PODS, pod.name, larger, "resize")
            except RunNotFound:
                return  # Kubernetes before 1.33 has no such part of a pod.
            assert limit_of(resized) == 3 * 2**30
            another = {**larger["spec"]["containers"][0], "image": "localhost/other:1"}
            with pytest.raises(InvalidSettings):
                await place.api.patch(PODS, pod.name, {**uid, "spec": {"containers": [another]}}, "resize")

        self.run(opens, test)


class TestWatching(Contract):
    def test_tells_what_comes_after_a_listing_of_those_selected_alone(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run, other = a_run(), a_run()
            which = selector(run=run.name)
            await lay_down(place, run, workers=False)
            listing = await place.api.listing(CONFIG_MAPS, which)
            assert {each.name for each in listing.objects} == {run.name, f"{run.name}-status"}
            await lay_down(place, other, workers=False)
            async with place.api.watch(CONFIG_MAPS, listing.version, which) as changes:
                await place.change(CONFIG_MAPS, run.name, {"data": {"a": "1"}})
                change = await until_changed(changes, ChangeKind.MODIFIED)
                assert (change.object.name, change.object.data["a"]) == (run.name, "1")
                await place.create(CONFIG_MAPS, config_map(run, f"{run.name}-new", Part.ROOT, {}))
                assert (await until_changed(changes, ChangeKind.ADDED)).object.name == f"{run.name}-new"
                await place.remove(CONFIG_MAPS, f"{run.name}-new")
                assert (await until_changed(changes, ChangeKind.DELETED)).object.name == f"{run.name}-new"
            async with place.api.watch(CONFIG_MAPS, change.object.version, which) as changes:
                assert (await until_changed(changes, ChangeKind.ADDED)).object.name == f"{run.name}-new"

        self.run(opens, test)

    def test_cannot_go_on_from_what_is_forgotten(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            with pytest.raises(WatchExpired):
                async with place.api.watch(CONFIG_MAPS, "1") as changes:
                    await until_changed(changes, ChangeKind.BOOKMARK)

        self.run(opens, test)

    def test_a_copy_keeps_up(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run, moved = a_run(), asyncio.Event()
            await lay_down(place, run, workers=False)
            copy = Reflector(place.api, CONFIG_MAPS, fields=f"metadata.name={run.name}", changed=lambda _: moved.set())
            await copy.fill()
            following = asyncio.create_task(copy.run())

            async def until(condition: Callable[[], bool]) -> None:
                while not condition():
                    moved.clear()
                    await moved.wait()

            await place.change(CONFIG_MAPS, run.name, {"data": {"a": "1"}})
            await until(lambda: copy.objects[run.name].data.get("a") == "1")
            await place.remove(CONFIG_MAPS, run.name)
            await until(lambda: not copy.objects)
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

        self.run(opens, test)


class TestOffice(Contract):
    def test_is_entered_and_its_status_read(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            await lay_down(place, run, workers=False)
            leadership, previous = await take_over(place.api, run, "pod-1", lambda: NOON)
            assert previous is None
            assert (leadership.term.number, leadership.term.holder, leadership.term.since) == (1, "pod-1", NOON)
            for reason in ("ü", "y"):
                await leadership.write(status(run, reason=reason))
                assert await published(place, run) == status(run, reason=reason)
            _, previous = await take_over(place.api, run, "pod-2", lambda: NOON)
            assert previous == status(run, reason="y")

        self.run(opens, test)

    def test_the_one_before_can_write_no_more(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            await lay_down(place, run, workers=False)
            first, second = await enter(place, run, "pod-1"), await enter(place, run, "pod-2")
            with pytest.raises(OwnershipLost, match="another launcher"):
                await first.write(status(run, Phase.FAILED, "I am late"))
            await second.write(status(run, reason="here I am"))
            with pytest.raises(OwnershipLost):
                await first.write(status(run, Phase.FAILED, "I am later"))
            assert await published(place, run) == status(run, reason="here I am")
            found = term_of(await place.api.get(CONFIG_MAPS, ObjectNames(run.name).status))
            assert found == second.term
            assert second.term.number == 2
            assert second.term.fence > first.term.fence

        self.run(opens, test)

    def test_is_not_lost_to_somebody_who_touches_the_status(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            await lay_down(place, run, workers=False)
            leadership = await enter(place, run)
            await place.change(
                CONFIG_MAPS, ObjectNames(run.name).status, {"metadata": {"annotations": {"note": "to myself"}}}
            )
            await leadership.write(status(run))
            assert await published(place, run) == status(run)

        self.run(opens, test)

    @pytest.mark.parametrize("what", ["removed", "made anew"])
    def test_is_over_when_its_run_is_gone(self, opens: Opens, what: str) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            await lay_down(place, run, workers=False)
            leadership, name = await enter(place, run), ObjectNames(run.name).status
            await place.remove(CONFIG_MAPS, name)
            if what == "removed":
                with pytest.raises(RunNotFound):
                    await leadership.write(status(run))
                return
            await place.create(CONFIG_MAPS, config_map(run, name, Part.STATUS, {}))
            with pytest.raises(OwnershipLost):
                await leadership.write(status(run))
            assert await published(place, run) is None

        self.run(opens, test)

    def test_of_another_incarnation_is_not_taken(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run = a_run()
            await lay_down(place, run, workers=False)
            late = spec(run.name, "an earlier uid")
            with pytest.raises(OwnershipLost, match="another incarnation"):
                await take_over(place.api, late, "pod-1", lambda: NOON)
            with pytest.raises(OwnershipLost, match="another incarnation"):
                await read_spec(place.api, run.name, late.uid)
            found, root = await read_spec(place.api, run.name, run.uid)
            assert (found, SPEC_KEY in root.data) == (run, True)

        self.run(opens, test)


class TestTokens(Contract):
    def test_of_a_pod_are_verified_by_the_keys_that_are_published(self, opens: Opens) -> None:
        async def test(place: Place) -> None:
            run, wanted = a_run(), f"elastic-training/{uuid4().hex}"
            made = await place.create(PODS, bare_pod(run))
            token = await place.token(made.name, wanted)
            keys = read_keys(await place.api.token_keys())
            key = keys[key_id(token) or ""]
            assert verify(token, key, wanted) == Bound(place.api.namespace, made.name, made.uid)
            with pytest.raises(InvalidDocument, match="not for this run"):
                verify(token, key, "another")
            head, body, signature = token.split(".")
            with pytest.raises(InvalidDocument, match="not one that the API server has signed"):
                verify(f"{head}.{body}.{signature[::-1]}", key, wanted)

        self.run(opens, test)


def bare_pod(run: RunSpec) -> Plain:
    """That need not run."""
    containers = [{"name": "worker", "image": "localhost/none:1"}]
    metadata = {"name": f"{run.name}-worker-x7k2p", "labels": labels(run.name, run.uid, Part.WORKER)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
