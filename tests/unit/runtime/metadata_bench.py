"""A metadata service on loopback that answers as it is told, to the byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest

from elastic_runtime.agent.notices.clouds import MetadataClient, Service
from elastic_runtime.errors import ClusterUnavailable


@dataclass(frozen=True)
class Asked:
    """One request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""


Reply = Callable[[Asked], Awaitable[bytes]]


def answer(status: int, body: str = "", **headers: str) -> bytes:
    """HTTP, as a small server writes it. Names of headers with ``_`` for ``-``."""
    fields = {"Content-Type": "text/plain", "Content-Length": str(len(body.encode())), "Connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n{body}".encode()


@dataclass(eq=False)
class MetadataServer:
    """Answers with what ``replies`` gives; notes what it was asked."""

    reply: Reply
    base: str = ""
    asked: list[Asked] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [f"{each.method} {each.path}" for each in self.asked]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *fields = head.strip().split("\r\n")
            method, path, version = first.split(" ")
            assert version == "HTTP/1.1"
            headers = dict(line.split(": ", 1) for line in fields)
            asked = Asked(method, path, {name.lower(): value for name, value in headers.items()})
            self.asked.append(asked)
            writer.write(await self.reply(asked))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked has gone
        finally:
            writer.close()


@asynccontextmanager
async def metadata_server(reply: Reply) -> AsyncIterator[MetadataServer]:
    """Listening on a port of its own."""
    served = MetadataServer(reply)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await served.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    served.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SOON = NOW + timedelta(seconds=120)
LONG_AGO = NOW - timedelta(days=1)


def told(text: datetime) -> str:
    return text.strftime("%Y-%m-%dT%H:%M:%SZ")


def asking(reply: Reply, ask: Callable[[MetadataServer], Awaitable[Any]]) -> tuple[Any, MetadataServer]:
    """What ``ask`` returns of a server that answers like that, and the server."""

    async def run() -> tuple[Any, MetadataServer]:
        async with metadata_server(reply) as server, asyncio.timeout(10):
            return await ask(server), server

    return asyncio.run(run())


def looks(service: Callable[[str], Service], reply: Reply, times: int = 1) -> tuple[list[Any], MetadataServer]:
    """What so many looks see; errors as their text."""

    async def ask(server: MetadataServer) -> list[Any]:
        found, seen = service(server.base), []
        for _ in range(times):
            try:
                seen.append(await found.look())
            except ClusterUnavailable as error:
                seen.append(str(error).replace(server.base, ""))
        return seen

    return asking(reply, ask)


class Ec2:
    """Answers as EC2's metadata service does, version 2 required."""

    def __init__(self, documents: dict[str, list[bytes]], token: str = "X-aws-ec2-metadata-token") -> None:
        self.documents, self.token, self.tokens = documents, token.lower(), 0
        self.valid = {"token-1", "token-2", "token-3"}

    async def __call__(self, asked: Asked) -> bytes:
        if (asked.method, asked.path) == ("PUT", "/latest/api/token"):
            assert asked.headers["content-length"] == "0"
            lifetime = asked.headers[f"{self.token}-ttl-seconds"]
            self.tokens += 1
            return answer(200, f"token-{self.tokens}", **{f"{self.token}-ttl-seconds": lifetime})
        if asked.headers.get(self.token) not in self.valid:
            return answer(401, UNAUTHORIZED)
        left = self.documents.get(asked.path, [])
        return (left.pop(0) if len(left) > 1 else left[0]) if left else answer(404, NOT_FOUND)


UNAUTHORIZED = (
    '<?xml version="1.0" encoding="iso-8859-1"?>\n<html><head><title>401 - Unauthorized</title></head></html>'
)
NOT_FOUND = '<?xml version="1.0" encoding="iso-8859-1"?>\n<html><head><title>404 - Not Found</title></head></html>'
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TERMINATION = "/latest/meta-data/instance/spot/termination-time"


def action(time: datetime, what: str = "terminate") -> bytes:
    return answer(200, json.dumps({"action": what, "time": told(time)}))


GOOGLE = {"Metadata_Flavor": "Google", "Server": "Metadata Server for VM"}
PREEMPTED = "/computeMetadata/v1/instance/preempted"


class Gce:
    """Answers as GCE's metadata server does, with one (value, ETag) after the other."""

    def __init__(self, *values: tuple[str, str]) -> None:
        self.values = list(values)

    async def __call__(self, asked: Asked) -> bytes:
        if asked.headers.get("metadata-flavor") != "Google" or asked.headers["host"] != "metadata.google.internal":
            return answer(403, "Missing Metadata-Flavor:Google header.")
        if not asked.path.startswith(PREEMPTED):
            return answer(404)
        value, etag = self.values.pop(0)
        return answer(200, value, ETag=etag, Content_Type="application/text", **GOOGLE)


INSTANCE = {"compute": {"name": "aks-spot-1_0", "vmScaleSetName": "aks-spot-1", "azEnvironment": "AzurePublicCloud"}}
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


def event(**changes: Any) -> dict[str, Any]:
    """One, as documented."""
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["aks-spot-1_0"],
        "EventStatus": "Scheduled",
        "NotBefore": "Sat, 21 Nov 2026 12:00:30 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **changes,
    }


class AzureHost:
    """Answers as Azure's instance metadata service does, with one list of events after the other."""

    def __init__(self, *events: list[dict[str, Any]] | bytes, instance: Any = INSTANCE) -> None:
        self.events, self.instance, self.incarnation = list(events), instance, 0

    async def __call__(self, asked: Asked) -> bytes:
        if asked.headers.get("metadata") != "true":
            return answer(400, '{"error": "Required metadata header not specified"}')
        if asked.path == "/metadata/instance?api-version=2021-02-01":
            return answer(200, json.dumps(self.instance), Content_Type="application/json; charset=utf-8")
        if asked.path != EVENTS:
            return answer(404, '{"error": "Not found"}')
        self.incarnation += 1
        events = self.events.pop(0)
        if isinstance(events, bytes):
            return events
        document = {"DocumentIncarnation": self.incarnation, "Events": events}
        return answer(200, json.dumps(document), Content_Type="application/json; charset=utf-8")


@contextmanager
def max_wait(seconds: float) -> Iterator[None]:
    """Wait for an answer no longer than that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MetadataClient.request.__kwdefaults__, "max_wait", seconds)
        yield
