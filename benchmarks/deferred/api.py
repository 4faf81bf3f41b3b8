"""The benchmark's own client of the API server: makes and changes the stand-ins, and counts what it asks for."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp

from benchmarks.deferred.control_plane import ApiServer
from benchmarks.deferred.requests import Kind, between, parse

NAMESPACE = "default"
_MERGE = "application/merge-patch+json"
_CONNECTIONS = 16

JsonObject = dict[str, Any]
"""An object of Kubernetes."""


class Api:
    """Few methods, namespaced objects of :data:`NAMESPACE` but for nodes.

    Args:
        server: where.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._own: Counter[Kind] = Counter()
        self._under_way = 0
        self._changed = asyncio.Condition()
        self._counting = False
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=str(self._server.folder / "ca.crt"))
        self._session = aiohttp.ClientSession(
            base_url=self._server.url,
            headers={"Authorization": f"Bearer {self._server.token}"},
            connector=aiohttp.TCPConnector(ssl=context, limit=_CONNECTIONS),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def create(self, resource: str, body: JsonObject) -> JsonObject:
        """POST an object.

        Args:
            resource: plural, such as ``pods``.
            body: with ``apiVersion``.
        """
        return await self._ask("POST", Kind("POST", resource), _path(body["apiVersion"], resource), json=body)

    async def patch(self, version: str, resource: str, name: str, change: JsonObject) -> JsonObject:
        """JSON merge patch (RFC 7386).

        Args:
            version: ``apiVersion`` of the object.
            resource: plural, with a subresource if need be, such as ``pods/status``.
            name: of the object.
            change: what is merged into it.
        """
        plural, _, subresource = resource.partition("/")
        path = "/".join(filter(None, (_path(version, plural), name, subresource)))
        headers = {"Content-Type": _MERGE}
        return await self._ask("PATCH", Kind("PATCH", plural, subresource), path, json=change, headers=headers)

    async def delete_all(self, version: str, resource: str) -> None:
        """Every object of a kind, at once: no kubelet is there to take its time, and nobody to remove a finalizer."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Background",
        }
        await self._ask("DELETE", Kind("DELETECOLLECTION", resource), _path(version, resource), json=options)

    async def answered(self) -> Counter[Kind]:
        """Requests that the API server has answered to others than this client."""
        async with self._alone(), self._session.get("/metrics") as answer:
            answer.raise_for_status()
            theirs = between(self._own, parse(await answer.text()))
        # Reading the metrics is a request, too, but for no resource.
        return Counter({kind: count for kind, count in theirs.items() if kind.resource})

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """No other request of this client is under way, so that both sides have counted the same."""
        async with self._changed:
            self._counting = True
            await self._changed.wait_for(lambda: self._under_way == 0)
        try:
            yield
        finally:
            async with self._changed:
                self._counting = False
                self._changed.notify_all()

    @asynccontextmanager
    async def _counted(self, kind: Kind) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._counting)
            self._under_way += 1
        try:
            yield
        finally:
            async with self._changed:
                self._under_way -= 1
                self._own[kind] += 1
                self._changed.notify_all()

    async def _ask(self, method: str, kind: Kind, path: str, **options: Any) -> JsonObject:
        async with self._counted(kind), self._session.request(method, path, **options) as answer:
            if not answer.ok:
                raise RuntimeError(f"{method} {path}: {answer.status} {(await answer.text())[:500]}")
            body: JsonObject = await answer.json()
            return body


def _path(version: str, resource: str) -> str:
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/{resource}" if resource == "nodes" else f"{root}/namespaces/{NAMESPACE}/{resource}"
