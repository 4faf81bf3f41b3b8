"""HTTP as far as metadata services need it: one small request at a time to a link-local address, bounded in time.

asyncio's streams carry the bytes and :mod:`http.client` reads them. Not urllib or a client library: they ask through
the proxy that the environment names, which a link-local address must never be asked through; a thread that waits for an
answer would hold up the agent's end; and a further dependency would have to be in every user's image.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.run.rundir import ReclaimNotice

TIMEOUT = 2.0
"""Seconds for a request, from dialling to the last byte of the answer."""
MAX_ANSWER = 65536
"""Bytes. A metadata service that has more to say is none."""
TOKEN_LIFE = 21600
"""Seconds that a session token is asked for: the most that AWS and Alibaba give."""
TOKEN_MARGIN = 600.0
"""Seconds before its end at which a token is renewed."""
_NO_ANSWER = (OSError, EOFError, asyncio.LimitOverrunError, http.client.HTTPException, ValueError, OverflowError)
"""What comes of none in time, or none that is HTTP; the last of a chunk larger than any memory."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)


class Service(Protocol):
    """One cloud's metadata service."""

    async def detect(self) -> bool:
        """Whether it is here; one or two requests. Raises ClusterUnavailable, which says no."""

    async def look(self) -> ReclaimNotice | None:
        """Ask once, or wait for a change.

        Raises:
            ClusterUnavailable: no answer, or none that makes sense.
        """


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a metadata service."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        """The body. Raises ClusterUnavailable when it is no text."""
        try:
            return self.body.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ClusterUnavailable(f"a metadata service answered what is not text: {self.body[:80]!r}") from error


class MetadataClient:
    """Sends requests to one service.

    Args:
        base: ``http://ADDRESS[:PORT]``; an address, not a name: looking one up can block for long.
        host: what the Host header says; None: as ``base``.
    """

    def __init__(self, base: str, host: str | None = None) -> None:
        parts = urlsplit(base)
        self._address, self._port = parts.hostname or "", parts.port or 80
        self._host = host or parts.netloc
        self.base = base

    async def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, *, max_wait: float = TIMEOUT
    ) -> Answer:
        """Send one request.

        Args:
            method: ``GET`` or ``PUT``, the latter without a body.
            path: with its query.
            headers: on top of those that HTTP wants.
            max_wait: seconds.

        Raises:
            ClusterUnavailable: no answer in time, or none that is HTTP.
        """
        own = {"Host": self._host, "Connection": "close", **({"Content-Length": "0"} if method == "PUT" else {})}
        fields = "".join(f"{name}: {value}\r\n" for name, value in {**own, **(headers or {})}.items())
        try:
            async with asyncio.timeout(max_wait):
                received = await self._exchange(f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1"))
            return _parse(received, method)
        except _NO_ANSWER as error:
            raise ClusterUnavailable(f"{method} {self.base}{path}: {error!r}") from error

    async def _exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._address, self._port, limit=MAX_ANSWER)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)  # or all until the service hangs up, as we have asked it to
            wanted = min(int(length[1]), MAX_ANSWER) if length else MAX_ANSWER
            body = b""
            while len(body) < wanted and (more := await reader.read(wanted - len(body))):
                body += more
            return head + body
        finally:
            writer.transport.abort()  # also when cancelled: there is nothing left to flush


class _Received:
    """What :class:`http.client.HTTPResponse` wants of a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parse(received: bytes, method: str) -> Answer:
    sock: Any = _Received(received)
    with http.client.HTTPResponse(sock, method=method) as response:
        response.begin()
        body = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


class TokenSession:
    """Session-oriented requests: AWS's IMDSv2, which Alibaba's hardened mode has taken over, but for the names.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-v2-how-it-works.html

    Args:
        client: to send with.
        prefix: of the headers' names: ``X-aws-ec2-metadata-token``.
        clock: monotonic seconds.
    """

    def __init__(self, client: MetadataClient, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._prefix, self._clock = client, prefix, clock
        self._token: str | None = None
        self._renew_at = 0.0

    async def open(self) -> Answer:
        """Get a token. Returns the answer that it came with. Raises ClusterUnavailable."""
        self._token = None
        lifetime = {f"{self._prefix}-ttl-seconds": str(TOKEN_LIFE)}
        answer = await self._client.request("PUT", "/latest/api/token", lifetime)
        if answer.status != http.client.OK or not answer.text.isprintable() or not answer.text:
            raise ClusterUnavailable(f"{self._client.base} gives no session token: it answered {answer.status}")
        self._token, self._renew_at = answer.text, self._clock() + TOKEN_LIFE - TOKEN_MARGIN
        return answer

    async def get(self, path: str) -> Answer:
        """Ask, with a token that is renewed in time, or once the service does not know it any more.

        Raises:
            ClusterUnavailable: no answer, or no token.
        """
        if self._token is None or self._clock() >= self._renew_at:
            await self.open()
        answer = await self._client.request("GET", path, {self._prefix: self._token or ""})
        if answer.status == http.client.UNAUTHORIZED:
            await self.open()
            answer = await self._client.request("GET", path, {self._prefix: self._token or ""})
        return answer


def unexpected(what: str, answer: Answer) -> ClusterUnavailable:
    """The error for an answer that makes no sense.

    Such a one is never taken for a notice: whatever answers so might do it for ever, and on every machine.
    """
    return ClusterUnavailable(f"{what} answered {answer.status}: {answer.body[:80]!r}")
