"""Who attends a run, while the shared watch lags behind what the API server knows."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from elastic_runtime.kubernetes.objects import Json, Object
from elastic_runtime.kubernetes.resources import Kind
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes import place as module
from elastic_training.clusters.kubernetes.access import Access, read_access
from elastic_training.clusters.kubernetes.documents.root import document
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from tests.unit.provider.kubernetes_objects import SPEC, root_map

REF = RunRef(SPEC.name, SPEC.uid)


class Server:
    """The root of one run, and how often it was read."""

    namespace = "default"

    def __init__(self) -> None:
        self.thing = root_map(owner="me")
        self.reads = 0

    async def find(self, kind: Kind[Any], name: str) -> Object:
        self.reads += 1
        return self.thing

    async def patch(self, kind: Kind[Any], name: str, patch: Json) -> Object:
        annotations = {**self.thing.annotations, **patch["metadata"]["annotations"]}
        self.thing = Object({**self.thing.raw, "metadata": {**self.thing.metadata, "annotations": annotations}})
        return self.thing


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    access = read_access("somewhere", {})

    async def asked(_: str) -> Access:
        return access

    monkeypatch.setattr(connection, "remembered", lambda _: access)
    monkeypatch.setattr(connection, "access_of", asked)
    monkeypatch.setattr(connection, "client", lambda *_: nullcontext(server))
    return server


def seen(monkeypatch: pytest.MonkeyPatch, thing: Object) -> None:
    """This is what the shared watch has told so far."""
    monkeypatch.setattr(module, "cached_root", lambda *_, **__: document(thing))


class TestAttendance:
    def test_it_is_ours_though_the_watch_has_not_told_of_it_yet(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster = KubernetesCluster("somewhere")
        seen(monkeypatch, server.thing)
        assert run(cluster.log_lease_holder(REF)) is None
        assert run(cluster.log_lease_holder(REF)) != (mine := run(cluster.take_log_lease(REF, "me")).token)
        assert run(cluster.log_lease_holder(REF)) == mine

    def test_once_the_watch_has_told_of_it_nothing_is_asked_for(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster = KubernetesCluster("somewhere")
        mine = run(cluster.take_log_lease(REF, "me")).token
        seen(monkeypatch, server.thing)
        before = server.reads
        assert run(cluster.log_lease_holder(REF)) == mine
        assert server.reads == before

    def test_somebody_else_s_is_found_out(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = KubernetesCluster("somewhere")
        run(cluster.take_log_lease(REF, "me"))
        other = run(KubernetesCluster("somewhere").take_log_lease(REF, "me")).token
        seen(monkeypatch, server.thing)
        assert run(cluster.log_lease_holder(REF)) == other
