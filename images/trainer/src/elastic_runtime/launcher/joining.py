"""Machines that join by hand: tokens for certificates, and which of these are valid.

A machine with a token connects to the port for agents with a protocol of its own (:data:`~.certificates.JOIN`), within
the limits for strangers there. It gets a certificate of its own, by which it connects again, as an agent of one name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.certificates import Authority, join_server_context
from elastic_runtime.net.framing import LineReader
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.protocol.joining import JoinGranted, JoinRefused, JoinRequest, decode, encode
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run.join import BY_NAME, HOW_TO_NAME, digest_of, joined_name
from elastic_runtime.run.spec import RunSpec

log = logging.getLogger(__name__)

REQUEST = 8192
"""Bytes of a request."""
VALIDITY = timedelta(days=1)
"""Of a certificate. It is needed to connect, and to connect again, and not to stay connected."""
MOST_JOINED = 10_000
"""Machines of one launcher, over time."""
INVALID = "the token was used, has expired, or is of another run; print a new one with elastic-training token"


class Tokens(Protocol):
    """Tokens of a run, as :class:`~elastic_runtime.run.rundir.RunDir` keeps them."""

    def has_token(self, digest: str, now: datetime) -> bool:
        """Whether it is neither used nor expired."""

    def take_token(self, digest: str, now: datetime) -> bool:
        """Use it up. Return whether it could be used."""


class Joining:
    """Gives machines that join their certificates, and says which may still connect.

    Args:
        spec: of the run.
        authority: signs the certificates.
        tls: folder with the launcher's certificate.
        tokens: those of the run, by their digests.
        runtime: version of elastic-runtime here, which a machine that joins must have, too.
        now: wall clock.
        term: number of this launcher, from 1, among those that share the authority: no two give one name.
    """

    def __init__(
        self,
        spec: RunSpec,
        authority: Authority,
        tls: Path,
        tokens: Tokens,
        runtime: str,
        now: Callable[[], datetime] = utc_now,
        term: int = 1,
    ) -> None:
        self._spec, self._authority, self._tokens = spec, authority, tokens
        self._runtime, self._now = runtime, now
        self.context = join_server_context(tls)
        self._valid: set[str] = set()
        """Names of workers that may connect."""
        self._count = (term - 1) * MOST_JOINED
        self._most = term * MOST_JOINED
        self._limited_log = RateLimitedLog(log)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> bool:
        """Answer one request. Returns whether it was granted. Raises InvalidDocument, never with what was sent."""
        answer = self.answer(await _request(reader))
        if isinstance(answer, JoinRefused):
            self._limited_log.warning("refusing a machine at %s that wants to join: %s", address, answer.reason)
        else:
            log.info("a machine at %s may join as %s", address, answer.worker)
        writer.write(encode(answer))
        await writer.drain()
        with contextlib.suppress(OSError):  # The peer hangs up once it has the answer.
            await reader.read(1)
        return isinstance(answer, JoinGranted)

    def answer(self, request: JoinRequest) -> JoinGranted | JoinRefused:
        """Grant or refuse a request. A token is used up by a grant alone."""
        token, now = digest_of(request.secret), self._now()
        if not self._tokens.has_token(token, now):
            return JoinRefused(INVALID)
        if request.run != self._spec.name:
            return JoinRefused(f"the token is for the run {self._spec.name}")
        if request.runtime != self._runtime:
            other, own = printable(request.runtime, 40), self._runtime
            return JoinRefused(f"its elastic-runtime is {other}, and the run's is {own}: install {own} there")
        if self._spec.engine in BY_NAME and request.named != request.address:
            named, address = (printable(each or "nothing", 60) for each in (request.named, request.address))
            return JoinRefused(f"its name resolves to {named}, not to {address}. {HOW_TO_NAME}")
        if self._count >= self._most:
            return JoinRefused(f"{MOST_JOINED} machines have joined, which is the most")
        name = joined_name(self._count + 1)
        try:
            certificate = self._authority.answer(request.certificate, name, VALIDITY)
        except InvalidDocument as error:
            return JoinRefused(str(error))
        if not self._tokens.take_token(token, now):
            return JoinRefused(INVALID)
        self._count += 1
        self._valid.add(name)
        slots, grace = self._spec.workers.slots, self._spec.timing.leave_grace
        return JoinGranted(name, certificate, self._authority.root.decode(), slots, grace)

    def expects(self, worker: str) -> bool:
        """Whether a machine with the certificate of that name may connect."""
        return worker in self._valid

    def revoke(self, worker: str) -> None:
        """A worker has left in order: its certificate is of no use any more."""
        self._valid.discard(WorkerName.parse(worker).pod)


async def _request(reader: asyncio.StreamReader) -> JoinRequest:
    try:
        plain = await _first(reader)
        message = decode(plain)
    except InvalidDocument:
        message = None
    if not isinstance(message, JoinRequest):
        raise InvalidDocument("it wants to join, and sent no request that can be read")
    return message


async def _first(reader: asyncio.StreamReader) -> dict[str, Any]:
    lines = LineReader(REQUEST)
    while data := await reader.read(REQUEST):
        for plain in lines.feed(data):
            return plain
    raise InvalidDocument("it closed the connection")
