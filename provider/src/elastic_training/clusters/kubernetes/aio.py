"""The API server, for an event loop: lists, and streams of lines that stay open (watches, logs)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import MissingRight
from elastic_runtime.kubernetes.errors import translate, unreachable
from elastic_training.clusters.kubernetes.api import PAGE, REFUSALS
from elastic_training.clusters.kubernetes.resources import Kind, Object

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT = 10.0
ANSWER_TIMEOUT = 30.0
"""Seconds for a request that is no stream."""
OPENINGS = 100.0
"""Streams that are opened in a second, at most. Each is a TLS handshake, which is work for the event loop: a thousand
at a time, after a triggerer's start or the API server's, would stop it for seconds."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 3))
"""A stream may be silent for hours; so a server that is gone without a word is found out within two minutes."""


def import_client() -> None:
    """For a thread, before :func:`open_client`: these are hundreds of modules, for which an event loop stands still."""
    import kubernetes_asyncio.client  # noqa: F401  # kept by Python itself


def open_client(configuration: Any) -> Any:
    """An asynchronous client for the running loop, from the synchronous client's configuration."""
    from kubernetes_asyncio.client import ApiClient, Configuration

    mine = Configuration(host=configuration.host)
    for field in ("ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy", "proxy_headers"):
        setattr(mine, field, getattr(configuration, field))
    mine.connection_pool_maxsize = 0  # Without limit: each run's log is a stream of its own.
    return ApiClient(mine)


class AsyncApi:
    """One API server, in one event loop. Methods raise as :class:`~elastic_training.clusters.kubernetes.api.Api`'s.

    Args:
        client: from :func:`open_client`.
        configuration: the synchronous client's, which knows the present token.
    """

    def __init__(self, client: Any, configuration: Any) -> None:
        self._client = client
        self._configuration = configuration
        self._turn = 0.0

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def get(self, path: str) -> Object:
        """One object, or one page of a list."""
        async with self._open(path, {}, ANSWER_TIMEOUT) as response:
            return _read(await response.read(), path)

    async def list(self, kind: Kind, namespace: str, labels: str = "", fields: str = "") -> tuple[list[Object], str]:
        """All that match both selectors, and the version to watch from."""
        found: list[Object] = []
        path, query = kind.path(namespace), {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            async with self._open(path, query, ANSWER_TIMEOUT) as response:
                page = _read(await response.read(), path)
            found += page.get("items") or []
            if not (following := page["metadata"].get("continue")):
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = following

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Pieces of an answer without end, as they come."""
        now = asyncio.get_running_loop().time()
        self._turn = max(now, self._turn + 1 / OPENINGS)
        await asyncio.sleep(self._turn - now)
        async with self._open(path, query, None) as response:
            _keep_alive(response)
            yield response.content.iter_any()

    @asynccontextmanager
    async def _open(
        self, path: str, query: Mapping[str, str], seconds: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        try:
            response = await self._ask(path, query, aiohttp.ClientTimeout(total=seconds, connect=CONNECT_TIMEOUT))
            try:
                yield response
            finally:
                _hang_up(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(error, f"get {path}") from error

    async def _ask(self, path: str, query: Mapping[str, str], limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        for pause in (*REFUSALS, None):
            response: aiohttp.ClientResponse = await self._client.call_api(
                path,
                "GET",
                query_params=[(key, value) for key, value in query.items() if value],
                header_params={"Accept": "*/*", **await self._authorization()},
                _preload_content=False,
                _request_timeout=limit,
            )
            if response.status == 200:
                return response
            error = translate(response.status, (await response.read()).decode(errors="replace"), f"get {path}")
            if pause is None or not isinstance(error, MissingRight):
                raise error
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last pause is None")

    async def _authorization(self) -> dict[str, str]:
        if self._configuration.refresh_api_key_hook is None:
            settings = self._configuration.auth_settings()
        else:
            # May read a file, or run the kubeconfig's plugin for a new token.
            settings = await asyncio.to_thread(self._configuration.auth_settings)
        return {setting["key"]: setting["value"] for setting in settings.values() if setting["value"]}


def _read(text: bytes, path: str) -> Object:
    try:
        answer: Object = json.loads(text)
    except ValueError as error:
        raise unreachable(error, f"get {path}") from error
    return answer


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """At once: TLS's own farewell would wait for the server's, in a loop that may be about to end."""
    if (transport := _transport(response)) is not None:
        transport.abort()
    response.close()


def _transport(response: aiohttp.ClientResponse) -> asyncio.Transport | None:
    """None when the answer has been read whole, and its connection is another one's."""
    return response.connection.transport if response.connection else None


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    transport = _transport(response)
    if transport is not None and (connected := transport.get_extra_info("socket")):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in _KEEPALIVE:
            connected.setsockopt(socket.IPPROTO_TCP, option, seconds)
