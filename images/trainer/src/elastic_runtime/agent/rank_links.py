"""The agent's connections to one rank: the one that it was started with, and those of processes that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.rank_sockets import short_path

WORD = 65536
"""Bytes of a line on a rank's link: it is the user's script that writes there."""
MAX_LAST_MESSAGES = 1024 * 1024
"""Bytes that are read of the link of a rank that has ended; what it left behind may write there still."""
MAX_LINKS = 16
"""Connections of one rank at a time. A process that is one too many is not let in."""
_CHUNK = 65536
_ACCEPT_AGAIN = 1.0
"""Seconds after which connections are accepted again, if no descriptor was left for one."""
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Link:
    sock: socket.socket
    words: LineReader = field(default_factory=lambda: LineReader(WORD))
    listening: asyncio.Task[None] | None = None


class RankLinks:
    """Connections to one rank. Messages of all of them are passed on. Messages to the rank go to the newest.

    The listening socket is in a folder that only this user may enter, so nobody else can connect.

    Args:
        first: the agent's end of the socket pair that the rank inherits; owned from now on.
        path: of the listening socket.
        hear: called with each message.
        refused: called with the reason why a connection is not read any more.
        drained: returns once the launcher has taken most of what was sent.
    """

    def __init__(
        self,
        first: socket.socket,
        path: Path,
        hear: Callable[[Mapping[str, Any]], None],
        refused: Callable[[InvalidDocument], None],
        drained: Callable[[], Awaitable[None]],
    ) -> None:
        self._path, self._hear, self._refused, self._drained = path, hear, refused, drained
        self._links: list[_Link] = []
        self._add(first)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.setblocking(False)
        try:
            with short_path(path) as short:
                self._listening.bind(short)
            self._listening.listen(MAX_LINKS)
        except OSError as error:
            log.warning("processes that a rank starts cannot join: %s", error)
            self._accepting = None
        else:
            self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def tell(self, line: bytes) -> bool:
        """Send a line without blocking. Return whether the rank has taken all of it."""
        return self._links[-1].sock.send(line) == len(line)

    def hang_up(self) -> None:
        """Send nothing more: the rank then sees that it has missed a message."""
        self._links[-1].sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Read the last messages, which may be those of a durable checkpoint, and close all connections."""
        tasks = [each.listening for each in self._links if each.listening is not None and not each.listening.done()]
        unread = [each for each in self._links if each.listening in tasks]
        tasks += [self._accepting] if self._accepting else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in unread:
            with contextlib.suppress(OSError):  # There is no more.
                heard = 0
                while heard < MAX_LAST_MESSAGES and self._pass_on(link, data := link.sock.recv(_CHUNK)):
                    heard += len(data)
        for sock in (self._listening, *(each.sock for each in self._links)):
            sock.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _add(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._links.append(link := _Link(sock))
        link.listening = asyncio.get_running_loop().create_task(self._listen(link))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError:
                await asyncio.sleep(_ACCEPT_AGAIN)
                continue
            if len(self._links) < MAX_LINKS:
                self._add(sock)
            else:
                sock.close()

    async def _listen(self, link: _Link) -> None:
        """Pass on what a rank says, until it talks nonsense or has hung up."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while self._pass_on(link, await loop.sock_recv(link.sock, _CHUNK)):
                await asyncio.sleep(0)  # Others have their turn, however fast it talks.
                await self._drained()
        if link is not self._links[0]:
            self._links.remove(link)
            link.sock.close()

    def _pass_on(self, link: _Link, data: bytes) -> bool:
        """Whether there may be more."""
        try:
            for plain in link.words.feed(data):
                self._hear(plain)
        except InvalidDocument as error:  # No rank of ours talks so; what it says is not needed to train.
            self._refused(error)
            return False
        return bool(data)
