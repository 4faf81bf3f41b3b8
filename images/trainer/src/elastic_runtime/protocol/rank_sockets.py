"""How the process of a rank comes by its end of the line to its agent: it inherits it, or connects to a path."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping

RANK_FD = "ELASTIC_RUNTIME_RANK_FD"
"""File descriptor of the rank's end."""
RANK_FD_INODE = "ELASTIC_RUNTIME_RANK_FD_INODE"
"""Inode of that socket. A process that the rank spawns inherits the variables alone: there, the number is of another
file, or of none."""
RANK_SOCKET = "ELASTIC_RUNTIME_RANK_SOCKET"
"""Path of the socket by which a process connects that the rank has started without its descriptors, to train in its
place: see :func:`connected`."""


def inherited(environ: Mapping[str, str] = os.environ) -> socket.socket | None:
    """Return the socket that the agent has passed. None: no agent has, or this process is one that the rank spawned."""
    descriptor, inode = environ.get(RANK_FD), environ.get(RANK_FD_INODE)
    if descriptor is None or (inode is not None and _inode(int(descriptor)) != inode):
        return None
    return socket.socket(fileno=os.dup(int(descriptor)))


def connected(path: str) -> socket.socket:
    """Return a connection to the agent. Raise ConnectionError: the rank has ended, or this process has another user."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as short:
            sock.connect(short)
    except OSError as error:
        sock.close()
        raise ConnectionError(f"this process cannot take part in the run: no agent: {error}") from error
    return sock


@contextlib.contextmanager
def short_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """Another path of a socket for the block: a socket's path has at most 107 bytes."""
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def _inode(descriptor: int) -> str | None:
    try:
        return str(os.fstat(descriptor).st_ino)
    except OSError:
        return None
