"""Connections to a pool's keeper, and what is read from them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import TypeVar

from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidDocument
from elastic_runtime.net.certificates import LAUNCHER, agent_context
from elastic_runtime.net.framing import MAX_LINE, decode_line
from elastic_runtime.net.sockets import end_when_silent
from elastic_runtime.protocol.messages import Vocabulary
from elastic_runtime.retry import RetryPolicy

T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ATTEMPT = 5.0
"""Seconds for one attempt to connect."""
SILENCE = 15.0
"""Seconds without an answer of the other machine, after which a connection is over."""
AGAIN = RetryPolicy(first=0.1, longest=2.0)
"""Between attempts."""


async def connect(host: str, port: int, tls: Path, whose: str) -> Streams:
    """Dial a keeper once.

    Args:
        host: address at which it listens.
        port: there.
        tls: folder with a certificate of the pool.
        whose: keeper that is, for people.

    Raises:
        ClusterUnavailable: there is none, or it does not answer.
    """
    try:
        context = agent_context(tls)
        async with asyncio.timeout(ATTEMPT):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=LAUNCHER, limit=MAX_LINE
            )
    except (OSError, ElasticError, ssl.SSLError) as error:  # A TimeoutError is an OSError.
        problem = str(error) or f"no answer within {ATTEMPT:.0f} s"
        raise ClusterUnavailable(f"the keeper of {whose} cannot be reached: {problem}") from error
    end_when_silent(writer.get_extra_info("socket"), SILENCE)
    return reader, writer


async def receive(reader: asyncio.StreamReader, vocabulary: Vocabulary[T]) -> T | None:
    """Return the next message; None once the other side has disconnected.

    Raises:
        InvalidDocument: it is none, or too long.
    """
    try:
        line = await reader.readline()
    except OSError:
        return None
    except ValueError as error:
        raise InvalidDocument(f"a line of more than {MAX_LINE} bytes") from error
    if not line.endswith(b"\n"):
        return None
    message = vocabulary.read(decode_line(line))
    if message is None:
        raise InvalidDocument("a message of an unknown type")
    return message
