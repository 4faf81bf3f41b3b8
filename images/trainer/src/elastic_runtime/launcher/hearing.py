"""What one agent says, read at a pace that leaves the others their time, and the launcher its memory.

A message, a byte and a line of output each cost a share of a second. An agent that sends more than a second's worth
in a second is not read for a while; then its side of the connection fills up, and it has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from elastic_runtime.net.framing import LineReader
from elastic_runtime.pace import Pace
from elastic_runtime.protocol.wire import Message, Output, decode

HELLO = 8192
"""Bytes of the first line, most of which are the agent's token."""
MESSAGE = 1024 * 1024
"""Bytes of any later one; a rank's output comes in pieces of 128 KiB at most, which JSON's escapes may make six times
as long."""
CHUNK = 65536
MESSAGES, BYTES, OUTPUT_LINES = 2000.0, 16e6, 100_000.0
"""Of one agent in a second."""
BURST = 1.0
"""Seconds' worth that may come at once."""
TURN = 0.01
"""Seconds' worth after which it is somebody else's turn."""


class Hearing:
    """See the module.

    Args:
        reader: of the connection; its own limit is :data:`CHUNK`.
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._lines = reader, LineReader(HELLO)
        self._found: Iterator[dict[str, Any]] = iter(())
        self._pace = Pace(1.0, BURST, asyncio.get_running_loop().time)
        self._owed = 0.0

    def welcome(self) -> None:
        """It is an agent: its lines may be longer from now on."""
        self._lines.allow(MESSAGE)

    async def next(self) -> Message | None:
        """The next message; None when the agent has hung up.

        Raises:
            InvalidDocument: it talks nonsense, or too long.
            OSError: the connection is lost.
        """
        while (plain := next(self._found, None)) is None:
            data = await self._reader.read(CHUNK)
            if not data:
                return None
            await self._pay(len(data) / BYTES)
            self._found = self._lines.feed(data)
        message = decode(plain)
        lines = len(message.lines) if isinstance(message, Output) else 0
        await self._pay(1 / MESSAGES + lines / OUTPUT_LINES)
        return message

    async def _pay(self, seconds: float) -> None:
        self._owed += seconds
        if self._owed >= TURN:
            owed, self._owed = self._owed, 0.0
            await asyncio.sleep(self._pace.pay(owed))
