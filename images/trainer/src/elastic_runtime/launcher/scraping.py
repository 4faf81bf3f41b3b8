"""Where the launcher answers Prometheus: ``GET /metrics`` over HTTP, for whoever shows the token. On request.

Strangers find here what they find at the agents' port (:mod:`.agents`): a few seats, the oldest of the fullest address
going for whoever comes (:class:`~.lobby.Lobby`), a few seconds, a few KiB, and so many tries a second that fail
(:class:`~.lobby.Turns`). The answer is made at most once a second, however many ask.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import Callable
from pathlib import Path

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.launcher.exposition import CONTENT_TYPE, exposition
from elastic_runtime.launcher.lobby import Lobby, Turns
from elastic_runtime.net.http_head import parse_headers
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.run.observe import PrometheusSpec
from elastic_runtime.run.status import Status

log = logging.getLogger(__name__)

SEATS = 16
"""Connections at a time."""
REQUEST_TIMEOUT = 5.0
"""Seconds from a connection's begin to its end."""
HEAD = 8 * 1024
"""Bytes of a request."""
FAILURES = 10.0
"""Requests a second without the token that are answered; later ones wait."""
FRESH = 1.0
"""Seconds for which an answer is given again."""
LEAST_TOKEN, MOST_TOKEN = 16, 4096
"""Characters."""
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class Scraping:
    """Serve ``GET /metrics`` to clients with the token.

    Args:
        spec: of the run.
        status: the present one.
    """

    def __init__(self, spec: PrometheusSpec, status: Callable[[], Status]) -> None:
        self._spec, self._status = spec, status
        self._token = read_token(spec)
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._lobby, self._turns = Lobby(SEATS), Turns(FAILURES, loop.time)
        self._answer: tuple[float, bytes] = (float("-inf"), b"")
        self._limited_log = RateLimitedLog(log)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int | None = None
        """On which it listens."""

    async def start(self, address: str) -> None:
        """Listen. A port that cannot be had is a warning: training does not depend on it."""
        try:
            self._server = await asyncio.start_server(self._arrived, address, self._spec.port, limit=HEAD)
        except OSError as error:
            log.warning("Prometheus is not answered: port %d: %s", self._spec.port, error.strerror)
            return
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("Prometheus is answered on port %d", self.port)

    async def close(self) -> None:
        """Hang up on everybody, and stop listening."""
        if self._server:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server:
            await self._server.wait_closed()

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        self._tasks.add(task)
        address = str((writer.get_extra_info("peername") or ("",))[0])
        self._lobby.enter(address, task)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await self._serve(reader, writer, address)
        except (OSError, InvalidDocument, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self._limited_log.warning("a request for metrics from %s: %s", address, printable(str(error) or "too slow"))
        except asyncio.CancelledError:
            pass  # Its seat was needed, or this ends: asyncio's own callback would log it as an error.
        finally:
            self._tasks.discard(task)
            self._lobby.leave(address, task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
        first, headers = parse_headers(head)
        await self._turns.wait(address)
        if not self._knows(headers.get("authorization", "")):
            await self._respond(writer, 401, b"")
            return
        self._turns.give_back()
        if first.split(" ")[:2] != ["GET", "/metrics"]:
            await self._respond(writer, 404, b"")
            return
        await self._respond(writer, 200, self._metrics())

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode(errors="replace")
        return hmac.compare_digest(given, self._token) and scheme.lower() == "bearer"

    def _metrics(self) -> bytes:
        made, answer = self._answer
        if self._now() - made >= FRESH:
            answer = exposition(self._status())
            self._answer = self._now(), answer
        return answer

    @staticmethod
    async def _respond(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        challenge = "WWW-Authenticate: Bearer\r\n" if status == 401 else ""
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n{challenge}Content-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode("ascii")
            + body
        )
        writer.close()
        await writer.wait_closed()


def read_token(spec: PrometheusSpec) -> bytes:
    """Read the token that scrapers must send.

    Raises:
        InvalidSettings: the file cannot be read, everybody may write to it, or it holds no token.
    """
    path = Path(spec.token_file)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as stream:
            token = stream.read(MOST_TOKEN + 1).strip()
    except OSError as error:
        remedy = "Write a token of 16 characters or more into it"
        raise InvalidSettings("observe.prometheus", f"{path} cannot be read: {error.strerror}", remedy) from error
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not token.isascii():
        problem = f"what {path} holds is not {LEAST_TOKEN} to {MOST_TOKEN} ASCII characters"
        raise InvalidSettings("observe.prometheus", problem, "Write a random token into it")
    return token
