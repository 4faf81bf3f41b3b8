"""Requests to one API server, from one event loop: JSON in, JSON out, or an answer without end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastic_runtime.kubernetes.errors import translate, unreachable
from elastic_runtime.kubernetes.objects import Json
from elastic_runtime.kubernetes.retry import persistently
from elastic_runtime.net.sockets import end_when_silent
from elastic_runtime.pace import Pace

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
"""For a request that is no stream, from its first byte to the last of its answer."""
SILENCE = 120.0
"""A stream may have nothing to say for hours; so a server that is gone without a word is found out by the kernel."""
OPENINGS = 100.0
"""Streams that are opened in a second, at most. Each is a TLS handshake, which is work for the event loop: a thousand
at a time, after a triggerer's start or the API server's, would stop it for seconds."""
FAREWELL = 0.25
"""For TLS's goodbye on a connection whose request was cut off before its answer began: only the client library has that
connection, and its session's end does not wait for it (docs.aiohttp.org, "Graceful shutdown")."""
ANYTHING = "*/*"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""For a list: without what the objects hold, which may be a thousand times as much."""
_CONTENT = {"PATCH": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Request:
    """HTTP request to the API server, not sent yet."""

    what: str
    """For people: ``create configmaps my-run in namespace training``."""
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    """Empty values are left out."""
    body: Json | None = None
    accept: str = ANYTHING


class Transport:
    """Send requests to one API server, with retries. Raise the errors of :mod:`elastic_runtime.kubernetes.errors`.

    Args:
        api_client: a ``kubernetes_asyncio.client.ApiClient``, which knows server, certificates and tokens.
    """

    def __init__(self, api_client: Any) -> None:
        self._api_client = api_client
        self._pace: Pace | None = None
        self._cut_off = -math.inf

    async def close(self) -> None:
        """Close every connection; none is left to an event loop that is about to end."""
        await self._api_client.close()
        await asyncio.sleep(max(0.0, self._cut_off + FAREWELL - asyncio.get_running_loop().time()))

    async def ask(self, request: Request) -> Json:
        """Send the request, and return the whole answer."""
        return await persistently(lambda: self._ask(request))

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """Pieces of an answer without end, as they come."""
        if self._pace is None:  # Its clock is the event loop's.
            self._pace = Pace(OPENINGS, 1, asyncio.get_running_loop().time)
        await asyncio.sleep(self._pace.pay(1))
        async with AsyncExitStack() as stack:
            response = await persistently(lambda: stack.enter_async_context(self._open(request, None)))
            if transport := _transport(response):
                with contextlib.suppress(OSError):
                    end_when_silent(transport.get_extra_info("socket"), SILENCE)
            yield response.content.iter_any()

    async def _ask(self, request: Request) -> Json:
        async with self._open(request, ANSWER_SECONDS) as response:
            text = await response.read()
        try:
            answer: Json = json.loads(text)
        except ValueError as error:  # cut off, or a proxy's
            raise unreachable(error, request.what) from None  # whose text may hold the password of a proxy
        return answer

    @asynccontextmanager
    async def _open(self, request: Request, seconds: float | None) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        try:
            response = await self._answer(request, seconds)
            try:
                if not 200 <= response.status < 300:
                    said = (await response.read()).decode(errors="replace")
                    raise translate(response.status, said, request.what, response.headers.get("Retry-After"))
                yield response
            finally:
                _close_connection(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(error, request.what) from None  # whose text may hold the password of a proxy

    async def _answer(self, request: Request, seconds: float | None) -> aiohttp.ClientResponse:
        import aiohttp

        try:
            response: aiohttp.ClientResponse = await self._api_client.call_api(
                request.path,
                request.method,
                query_params=[(key, value) for key, value in request.query.items() if value],
                header_params={
                    "Accept": request.accept,
                    "Content-Type": _CONTENT.get(request.method, "application/json"),
                },
                body=request.body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS),
            )
        except (asyncio.CancelledError, TimeoutError):
            self._cut_off = asyncio.get_running_loop().time()
            raise
        return response


def _close_connection(response: aiohttp.ClientResponse) -> None:
    """At once: TLS's own farewell would wait for the server's, in a loop that may be about to end."""
    if (transport := _transport(response)) is not None:
        transport.abort()
    response.close()


def _transport(response: aiohttp.ClientResponse) -> asyncio.Transport | None:
    """None when the answer has been read whole, and its connection is another one's."""
    return response.connection.transport if response.connection else None
