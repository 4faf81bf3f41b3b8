"""A node that is none: where the API server fetches the logs of the stand-in pods from.

Speaks the one thing of a kubelet's server that a log stream needs: ``GET /containerLogs/NAMESPACE/POD/CONTAINER`` with
``follow``, ``timestamps`` and ``sinceTime``, over TLS. So each followed log is what it is in production: a connection
from the client to the API server and one from there to the node.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

NODE = "stand-in"
"""Its name."""


@dataclass(slots=True)
class _Log:
    """Of one pod."""

    lines: list[tuple[datetime, str]] = field(default_factory=list)
    over: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new one, at every change."""

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Kubelet:
    """Holds the logs of all stand-in pods."""

    def __init__(self) -> None:
        self._logs: defaultdict[str, _Log] = defaultdict(_Log)
        self.followed = 0
        """Logs that somebody follows right now."""
        self.served = 0
        """Logs that somebody asked for, so far."""

    def write(self, pod: str, line: str) -> None:
        """One line of a pod's container."""
        log = self._logs[pod]
        log.lines.append((datetime.now(UTC), line))
        log.notify()

    def end(self, pod: str) -> None:
        """The container has ended: so do the streams of its log, after the last line."""
        log = self._logs[pod]
        log.over = True
        log.notify()

    def forget(self) -> None:
        """All pods are gone."""
        for log in self._logs.values():
            log.over = True
            log.notify()
        self._logs.clear()

    @asynccontextmanager
    async def serve(self, certificates: Path) -> AsyncIterator[int]:
        """Listen; yields the port.

        Args:
            certificates: folder with ``ca.crt``, of which every client needs a certificate, and ``apiserver.crt`` and
                ``apiserver.key``, which are valid for 127.0.0.1.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.crt"))
        context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
        context.verify_mode = ssl.CERT_REQUIRED
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, backlog=1024)
            await site.start()
            yield int(runner.addresses[0][1])
        finally:
            self.forget()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        log = self._logs[request.match_info["pod"]]
        query = request.query
        since = _time(query["sinceTime"]) if "sinceTime" in query else datetime.min.replace(tzinfo=UTC)
        stamped, follow = query.get("timestamps") == "true", query.get("follow") == "true"
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        self.served += 1
        self.followed += follow
        try:
            await response.prepare(request)
            await self._stream(response, log, since, stamped=stamped, follow=follow)
        except ConnectionError:
            pass  # Whoever followed has gone away.
        finally:
            self.followed -= follow
        return response

    async def _stream(
        self, response: web.StreamResponse, log: _Log, since: datetime, *, stamped: bool, follow: bool
    ) -> None:
        sent = 0
        while True:
            changed, over = log.changed, log.over
            new, sent = log.lines[sent:], len(log.lines)
            for moment, line in new:
                if moment >= since:
                    text = f"{_nanoseconds(moment)} {line}" if stamped else line
                    await response.write(f"{text}\n".encode())
            if over or not follow:
                return
            await changed.wait()


def node(port: int) -> dict[str, object]:
    """The object of the node.

    Args:
        port: at which the kubelet listens on this machine.
    """
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }


def _nanoseconds(moment: datetime) -> str:
    """RFC 3339 with nanoseconds, as a kubelet writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def _time(text: str) -> datetime:
    # A kubelet's sinceTime has whole seconds.
    return datetime.fromisoformat(text).astimezone(UTC)
