"""The sockets of Gloo in a rank: told from others, watched for silence, and shut down where Gloo would wait on them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from elastic_runtime.net.sockets import end_when_silent
from elastic_runtime.protocol.rank_link import PEER_SILENCE

DEFAULT_SILENCE = 10.0
"""Seconds; see :data:`elastic_runtime.protocol.rank_link.PEER_SILENCE`."""
PAIR = struct.Struct("=q")
"""First bytes of a connection to a rank: the number of its pair (``sequence_number_t`` of Gloo)."""


class PythonSockets:
    """Notes the sockets that Python code opens while :meth:`watching`: those are not Gloo's."""

    def __init__(self) -> None:
        self._watching = False
        self._seen: list[Any] = []
        sys.addaudithook(self._hear)  # For good: audit hooks cannot be removed. It costs nothing while not watching.

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._watching and event == "socket.__new__":
            self._seen.append(arguments[0])

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """From here to the end of the block, when all are forgotten."""
        self._watching = True
        try:
            yield
        finally:
            self._watching = False
            self._seen.clear()

    def others_since(self, before: dict[int, str]) -> dict[int, str]:
        """Sockets, as :func:`open_sockets` has them, that were opened since then, and not by Python code."""
        seen = {sock.fileno() for sock in list(self._seen)}
        return {fd: name for fd, name in open_sockets().items() if before.get(fd) != name and fd not in seen}


def open_sockets() -> dict[int, str]:
    """File descriptor to identity, of every socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def still_open(sockets: dict[int, str]) -> dict[int, str]:
    """Those of these sockets that are. The identity is compared: a descriptor may be somebody else's by now."""
    present = open_sockets()
    return {fd: name for fd, name in sockets.items() if present.get(fd) == name}


@contextlib.contextmanager
def borrowed(descriptor: int, name: str = "") -> Iterator[socket.socket]:
    """The socket of a descriptor that somebody else owns, for the block.

    Args:
        descriptor: of it.
        name: its identity, as :func:`open_sockets` has it. Compared, if given: it may be somebody else's by now.

    Raises:
        OSError: there is none.
    """
    own = os.dup(descriptor)
    try:
        if name and os.readlink(f"/proc/self/fd/{own}") != name:
            raise OSError(errno.EBADF, "another file by now")
        sock = socket.socket(fileno=own)
    except BaseException:  # Also an interruption: the descriptor is this block's alone.
        os.close(own)
        raise
    with sock:
        yield sock


@contextlib.contextmanager
def unless_gone() -> Iterator[None]:
    """Leave the block where a socket that was borrowed is closed, or its peer is: that ends when it likes."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOTSOCK, errno.ENOTCONN, errno.EINVAL):
            raise


def is_listening(sock: socket.socket) -> bool:
    """Whether others connect to it."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def cut(sockets: dict[int, str], *, listening: bool = True) -> int:
    """Shut down those of these sockets that are still open. Returns how many that were.

    Args:
        sockets: see :func:`open_sockets`.
        listening: also those that others connect to.
    """
    count = 0
    for descriptor in still_open(sockets):
        # Closed meanwhile, or not connected: nobody waits on it.
        with contextlib.suppress(OSError), borrowed(descriptor) as sock:
            if listening or not is_listening(sock):
                sock.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def notice_silence(sockets: Iterable[int], seconds: float) -> None:
    """Bound the silence of these connections: see :func:`~elastic_runtime.net.sockets.end_when_silent`.

    What a rank that is busy or stopped has to read, its kernel answers for: Gloo bounds that by its own time-out
    (``HOROVOD_GLOO_TIMEOUT_SECONDS``, 30; of torch.distributed the process group's).

    Args:
        sockets: file descriptors; those that are not TCP are left as they are.
        seconds: of silence; at least 1.
    """
    for descriptor in sockets:
        with contextlib.suppress(OSError), borrowed(descriptor) as sock:
            end_when_silent(sock, seconds)


def knock(sockets: Iterable[int], pairs: int) -> None:
    """Come in the place of every peer that Gloo still waits for, and go: it waits no more, and finds nobody there.

    torch's Gloo ends a wait for a peer that is to connect by itself after 5 times the group's time-out alone. Who comes
    names the pair that it belongs to, by a number that is counted from 0 (``Listener::nextAddress`` of Gloo).

    Args:
        sockets: file descriptors; those that nobody can connect to are passed over.
        pairs: highest number of a pair.
    """
    for descriptor in sockets:
        with contextlib.suppress(OSError), borrowed(descriptor) as sock:
            for pair in range(pairs + 1) if is_listening(sock) else ():
                with socket.create_connection(sock.getsockname()[:2], timeout=1.0) as visit:
                    visit.sendall(PAIR.pack(pair))


class GlooSockets:
    """Sockets of this rank's present world.

    Args:
        listening: whether to cut those, too, that others connect to. Horovod's Gloo gives up its wait for a peer then;
            torch's would end the process, and is visited instead: see :func:`knock`.
    """

    def __init__(self, *, listening: bool) -> None:
        self._listening = listening
        self._pairs = 0
        self._python = PythonSockets()
        self._before: dict[int, str] | None = None
        self._opened: dict[int, str] = {}

    @contextlib.contextmanager
    def connecting(self, size: int = 0) -> Iterator[None]:
        """Assign the sockets that Gloo opens in the block to the world of ``size`` ranks, also if connecting fails."""
        self._pairs = size
        before = self._before = open_sockets()
        with self._python.watching():
            try:
                yield
            finally:
                self._opened = self._python.others_since(before)
                self._before = None

    def opened(self) -> dict[int, str]:
        """So far; in any thread."""
        before = self._before
        return self._opened if before is None else self._python.others_since(before)

    def notice_silence(self) -> None:
        """Bound the silence of all: see :func:`notice_silence`."""
        notice_silence(self._opened, float(os.environ.get(PEER_SILENCE, DEFAULT_SILENCE)))

    def cut(self) -> None:
        """Shut them down: whoever waits on one waits no more. In any thread."""
        connecting = self._before is not None
        opened = self.opened()
        cut(opened, listening=self._listening)
        if connecting and not self._listening:
            knock(opened, self._pairs)

    def forget(self) -> None:
        """The world is over."""
        self._opened = {}
