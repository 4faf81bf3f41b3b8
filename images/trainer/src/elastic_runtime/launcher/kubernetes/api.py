"""Kubernetes' API by `kubernetes_asyncio`_, as plain JSON: no models, whose validation refuses what is newer than they.

.. _kubernetes_asyncio: https://github.com/tomplus/kubernetes_asyncio
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes_asyncio import client, config

from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    ElasticError,
    InvalidSettings,
    MissingRight,
    PermanentError,
    RunNotFound,
    WatchExpired,
)
from elastic_runtime.launcher.kubernetes.interface import Change, ChangeKind, Kind, Listing, Object, Selector

RBAC, NODES_RBAC = "deploy/rbac.yaml", "deploy/rbac-nodes.yaml"
"""Manifests with all rights that are needed, and with the one that is good to have, in the project's repository."""
CALL = aiohttp.ClientTimeout(total=20.0)
WATCH_SECONDS = 120
"""After which the server ends a watch, so that a dead connection is not listened to for longer."""
WATCH = aiohttp.ClientTimeout(sock_connect=10.0, sock_read=WATCH_SECONDS + 15.0)
_GROUPS = {Kind.REPLICA_SET: "/apis/apps/v1"}
_TRY_AGAIN = (401, 408, 429)


class ClusterApi:
    """Implements :class:`~.interface.Api`. Get one by :func:`connect`."""

    def __init__(self, api_client: Any, namespace: str) -> None:
        self._client, self._namespace = api_client, namespace

    async def read(self, kind: Kind, name: str) -> Object:
        """See :class:`Api`."""
        found: Object = await self._json("GET", self._path(kind, name))
        return found

    async def list(self, kind: Kind, selector: Selector) -> Listing:
        """See :class:`Api`."""
        found = await self._json("GET", self._path(kind), _query(selector))
        return Listing(tuple(found["items"]), str(found["metadata"]["resourceVersion"]))

    @asynccontextmanager
    async def watch(self, kind: Kind, selector: Selector, version: str) -> AsyncIterator[AsyncIterator[Change]]:
        """See :class:`Api`."""
        query = {
            **_query(selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = self._path(kind)
        response = await self._call("GET", path, query, timeout=WATCH)
        try:
            async with aclosing(_changes(response, path)) as changes:
                yield changes
        finally:
            if (connection := response.connection) and connection.transport:
                connection.transport.abort()  # Or TLS would wait for the server's goodbye.
            response.close()

    async def patch(self, kind: Kind, name: str, changes: Object) -> Object:
        """See :class:`Api`."""
        changed: Object = await self._json("PATCH", self._path(kind, name), body=changes)
        return changed

    async def scale(self, name: str, replicas: int) -> None:
        """See :class:`Api`."""
        path = f"{self._path(Kind.REPLICA_SET, name)}/scale"
        await self._json("PATCH", path, body={"spec": {"replicas": replicas}})

    async def delete(self, kind: Kind, name: str, uid: str, version: str | None = None) -> None:
        """See :class:`Api`."""
        conditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body = {"preconditions": conditions, "propagationPolicy": "Foreground"}
        await self._json("DELETE", self._path(kind, name), body=body)

    def _path(self, kind: Kind, name: str = "") -> str:
        where = "" if kind is Kind.NODE else f"/namespaces/{self._namespace}"
        return f"{_GROUPS.get(kind, '/api/v1')}{where}/{kind}" + (f"/{name}" if name else "")

    async def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Any:
        response = await self._call(method, path, query or {}, body)
        with _translated(path):
            return json.loads(await response.read())

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | None = None,
        timeout: aiohttp.ClientTimeout = CALL,  # noqa: ASYNC109 - of two parts, and the client's own
    ) -> aiohttp.ClientResponse:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with _translated(path):
            response: aiohttp.ClientResponse = await self._client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout,
            )
            if response.ok:
                return response
            text = await response.text()
        raise _refused(response.status, f"{method} {path}", text)


@asynccontextmanager
async def connect(namespace: str, kubeconfig: Path | None) -> AsyncIterator[ClusterApi]:
    """Connect as this pod's service account, or as a kubeconfig says.

    Raises:
        InvalidSettings: neither is there.
    """
    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # it is not
        else:
            await config.load_kube_config(str(kubeconfig), client_configuration=settings, persist_config=False)
    except config.ConfigException as error:
        remedy = "Run it in a pod with automountServiceAccountToken: true, or give --kubeconfig"
        raise InvalidSettings("service account", str(error), remedy) from error
    api_client = client.ApiClient(settings)
    api_client.user_agent = "elastic-training-launcher"
    try:
        yield ClusterApi(api_client, namespace)
    finally:
        await api_client.close()


def _query(selector: Selector) -> dict[str, str]:
    both = {"labelSelector": selector.labels, "fieldSelector": selector.fields}
    return {key: value for key, value in both.items() if value}


async def _changes(response: aiohttp.ClientResponse, path: str) -> AsyncGenerator[Change]:
    with _translated(path):
        async for line in response.content:
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise _refused(int(event["object"].get("code", 500)), f"to watch {path}", json.dumps(event["object"]))
            yield Change(ChangeKind(event["type"]), event["object"])


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
        # OSError: time-outs and TLS, too. The last two: an answer that was cut off, or that a proxy gave.
        raise ClusterUnavailable(f"no answer from the API server to {path}: {error!r}") from error


def _refused(status: int, call: str, text: str) -> ElasticError:
    try:
        said = json.loads(text)
        words, causes = str(said["message"]), (said.get("details") or {}).get("causes") or ()
    except (ValueError, KeyError, TypeError, AttributeError):
        words, causes = text[:300], ()
    if status == 422 and any(cause.get("field") == "metadata.uid" for cause in causes):
        return Conflict(words)  # What newer API servers call a failed precondition.
    match status:
        case 403:
            manifest = NODES_RBAC if call.endswith(f"/{Kind.NODE}") or f"/{Kind.NODE}/" in call else RBAC
            return MissingRight(f"{words}. Grant the launcher's service account the rights of {manifest}")
        case 404:
            return RunNotFound(words)
        case 409:
            return Conflict(words)
        case 410:
            return WatchExpired(words)
        case _ if status in _TRY_AGAIN or status >= 500:
            return ClusterUnavailable(f"{call}: {status} {words}")
        case _:
            return PermanentError(f"Kubernetes refuses {call}: {status} {words}")
