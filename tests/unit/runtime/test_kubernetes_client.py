"""The one client of Kubernetes, against a server that answers as told (a real one: kubernetes_launcher)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    ElasticError,
    InvalidSettings,
    MissingRight,
    RunNotFound,
    WatchExpired,
)
from elastic_runtime.kubernetes import client as module
from elastic_runtime.kubernetes.client import ChangeKind, Client
from elastic_runtime.kubernetes.connect import connect
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, EVENTS, JOBS, NODES, PODS, REPLICA_SETS

NO_RIGHT = 'pods is forbidden: User "me" cannot watch resource "pods" in API group ""'
POD: dict[str, Any] = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}}


@dataclass
class Server:
    """Gives every request the same answer, or one after the other, and notes them."""

    status: int = 200
    body: str | list[str] = "{}"
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.asked.append((method, path, headers, body))
        content = (self.body if isinstance(self.body, str) else self.body.pop(0)).encode()
        if self.status:
            length = len(content)
            writer.write(
                f"HTTP/1.1 {self.status} x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                f"Content-Length: {length}\r\n\r\n".encode()
            )
            writer.write(content)
            await writer.drain()
        writer.close()


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here speaks TLS, and the client reads all authorities of the machine whenever it is made."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)


def asking(server: Server, test: Callable[[Client], Awaitable[object]], folder: Path) -> None:
    async def main() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, connect("ns", kubeconfig(folder, f"http://127.0.0.1:{port}"), "me/1") as api:
            await test(api)

    asyncio.run(main())


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "config"
    settings = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(settings))
    return path


def said(message: str, **more: Any) -> str:
    return json.dumps({"kind": "Status", "message": message, **more})


class TestRequests:
    @pytest.mark.parametrize(
        ("call", "method", "path", "body"),
        [
            (lambda api: api.get(PODS, "a"), "GET", "/api/v1/namespaces/ns/pods/a", None),
            (lambda api: api.get(NODES, "n"), "GET", "/api/v1/nodes/n", None),
            (
                lambda api: api.list(EVENTS, fields="involvedObject.uid=u,type=Warning"),
                "GET",
                "/api/v1/namespaces/ns/events?limit=500&fieldSelector=involvedObject.uid%3Du,type%3DWarning",
                None,
            ),
            (
                lambda api: api.create(JOBS, {"metadata": {"name": "j"}}),
                "POST",
                "/apis/batch/v1/namespaces/ns/jobs",
                {"metadata": {"name": "j"}},
            ),
            (
                lambda api: api.patch(CONFIG_MAPS, "m", {"data": {"a": "ü"}}),
                "PATCH",
                "/api/v1/namespaces/ns/configmaps/m",
                {"data": {"a": "ü"}},
            ),
            (
                lambda api: api.patch(REPLICA_SETS, "s", {"spec": {"replicas": 3}}, "scale"),
                "PATCH",
                "/apis/apps/v1/namespaces/ns/replicasets/s/scale",
                {"spec": {"replicas": 3}},
            ),
            (
                lambda api: api.delete(PODS, "p", uid="u", version="7", propagation="Foreground", grace=0),
                "DELETE",
                "/api/v1/namespaces/ns/pods/p",
                {
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "propagationPolicy": "Foreground",
                    "preconditions": {"uid": "u", "resourceVersion": "7"},
                    "gracePeriodSeconds": 0,
                },
            ),
        ],
    )
    def test_are_what_kubernetes_expects(
        self, tmp_path: Path, call: Callable[[Client], Awaitable[object]], method: str, path: str, body: object
    ) -> None:
        server = Server(body=json.dumps({"items": [POD], "metadata": {"resourceVersion": "9"}}))
        asking(server, call, tmp_path)
        [(asked, where, headers, content)] = server.asked
        assert (asked, where) == (method, path)
        assert headers["authorization"] == "Bearer secret"
        assert headers["user-agent"] == "me/1"
        assert (json.loads(content) if content else None) == body
        patched = headers["content-type"] == "application/merge-patch+json"
        assert patched == (method == "PATCH")

    def test_a_list_goes_on_where_a_page_ends(self, tmp_path: Path) -> None:
        pages = [{"items": [POD], "metadata": {"resourceVersion": "9", "continue": "c"}}]
        pages.append({"items": [POD], "metadata": {"resourceVersion": "9"}})
        server = Server(body=[json.dumps(page) for page in pages])

        async def test(api: Client) -> None:
            assert [pod.name for pod in await api.list(PODS)] == ["a", "a"]

        asking(server, test, tmp_path)
        assert server.asked[1][1] == "/api/v1/namespaces/ns/pods?limit=500&continue=c"

    @pytest.mark.parametrize(("known", "served"), [(["jobs"], True), (["cronjobs"], False)])
    def test_a_kind_is_looked_for_in_its_group(self, tmp_path: Path, known: list[str], served: bool) -> None:
        server = Server(body=json.dumps({"resources": [{"name": name} for name in known]}))

        async def test(api: Client) -> None:
            assert await api.serves(JOBS) is served

        asking(server, test, tmp_path)
        assert server.asked[0][1] == "/apis/batch/v1"


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "body", "kind", "words"),
        [
            (404, said('pods "a" not found'), RunNotFound, 'pods "a" not found'),
            (409, said("has been modified"), Conflict, "has been modified"),
            (422, said("immutable", details={"causes": [{"field": "metadata.uid"}]}), Conflict, "immutable"),
            (422, said("too long", details={"causes": [{"field": "data"}]}), InvalidSettings, "too long"),
            (410, said("too old"), WatchExpired, "too old"),
            (401, said("Unauthorized"), ClusterUnavailable, "Unauthorized"),
            (429, said("slow down"), ClusterUnavailable, "slow down"),
            (500, said("etcd is away"), ClusterUnavailable, "etcd is away"),
            (503, "<html>a proxy</html>", ClusterUnavailable, "<html>a proxy"),
            (400, "nonsense", InvalidSettings, "nonsense"),
            (400, "[]", InvalidSettings, r"\[\]"),
            (0, "", ClusterUnavailable, "cannot get pods a in namespace ns: ServerDisconnected"),
            (200, "<html>a proxy</html>", ClusterUnavailable, "cannot get pods a in namespace ns"),
        ],
    )
    def test_are_told_apart(self, tmp_path: Path, status: int, body: str, kind: type[ElasticError], words: str) -> None:
        async def test(api: Client) -> None:
            with pytest.raises(kind, match=words) as caught:
                await api.get(PODS, "a")
            assert type(caught.value) is kind

        asking(Server(status, body), test, tmp_path)

    def test_nobody_there(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with connect("ns", kubeconfig(tmp_path, "http://127.0.0.1:1"), "me") as api:
                with pytest.raises(ClusterUnavailable, match="cannot get pods a in namespace ns"):
                    await api.get(PODS, "a")

        asyncio.run(main())

    def test_not_in_a_pod(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

        async def main() -> None:
            async with connect("ns", None, "me"):
                raise AssertionError("connected to nothing")

        with pytest.raises(InvalidSettings, match="automountServiceAccountToken"):
            asyncio.run(main())

    def test_no_such_kubeconfig(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with connect("ns", tmp_path / "none", "me"):
                raise AssertionError("connected to nothing")

        with pytest.raises(InvalidSettings, match="--kubeconfig"):
            asyncio.run(main())


class TestWatches:
    def watch(self, tmp_path: Path, body: str, status: int = 200) -> list[tuple[ChangeKind, str]]:
        seen = []
        server = Server(status, body)

        async def test(api: Client) -> None:
            async with api.watch(PODS, "5", "a=b") as changes:
                async for change in changes:
                    seen.append((change.kind, change.object.version))

        try:
            asking(server, test, tmp_path)
        finally:
            query = "labelSelector=a%3Db&watch=true&allowWatchBookmarks=true&resourceVersion=5&timeoutSeconds=240"
            assert server.asked[0][1] == f"/api/v1/namespaces/ns/pods?{query}"
        return seen

    @pytest.fixture(autouse=True)
    def same_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "WATCH_SECONDS", (240, 240))

    def lines(self, *events: tuple[str, Any]) -> str:
        return "".join(json.dumps({"type": kind, "object": thing}) + "\n" for kind, thing in events)

    def test_tell_of_changes_until_the_server_ends_them(self, tmp_path: Path) -> None:
        body = self.lines(("ADDED", POD), ("BOOKMARK", {"metadata": {"resourceVersion": "8"}}))
        assert self.watch(tmp_path, body) == [(ChangeKind.ADDED, "7"), (ChangeKind.BOOKMARK, "8")]

    def test_take_large_objects(self, tmp_path: Path) -> None:
        large = {**POD, "data": {"status.json": "x" * 1_500_000}}
        assert self.watch(tmp_path, self.lines(("MODIFIED", large))) == [(ChangeKind.MODIFIED, "7")]

    @pytest.mark.parametrize(
        ("body", "status", "kind"),
        [
            ('{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}\n', 200, WatchExpired),
            ('{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n', 200, ClusterUnavailable),
            ('{"type":"ADDED","obj\n', 200, WatchExpired),
            ('{"type":"NEW","object":{}}\n', 200, WatchExpired),
            (said("too old"), 410, WatchExpired),
            (said(NO_RIGHT), 403, MissingRight),
        ],
    )
    def test_say_why_they_end_before_time(
        self, tmp_path: Path, body: str, status: int, kind: type[ElasticError]
    ) -> None:
        with pytest.raises(kind):
            self.watch(tmp_path, body, status)
