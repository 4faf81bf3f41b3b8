"""Bounded reads of a run's folder, in which its script can put anything under any name."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, RunNotFound

LONGEST = 8 << 20
"""Bytes of a document by default."""
_FOREIGN = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENODEV)
"""A link, a folder, a socket, a file that this user may not read, or a device."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading, without waiting for a writer and without following a link.

    Raises:
        RunNotFound: there is none.
        InvalidDocument: it is something else, or not this user's to read.
        ClusterUnavailable: it cannot be opened for a reason that may pass.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFound(f"no {path.name} in {path.parent}: the run does not exist (any more)") from None
    except OSError as error:
        if error.errno not in _FOREIGN:
            raise ClusterUnavailable(f"{path} cannot be read: {error.strerror}") from error
    raise InvalidDocument(f"{path} is not a regular file that can be read")


def read_bytes(path: Path, most: int = LONGEST) -> bytes:
    """Content of a regular file. Raises as :func:`open_file`; InvalidDocument, too, if it is larger than ``most``."""
    with open_file(path) as stream:
        try:
            content = stream.read(most + 1)
        except OSError as error:
            raise ClusterUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise InvalidDocument(f"{path} is larger than {most} bytes")
    return content


def read_start(path: Path, most: int) -> bytes:
    """At most so many bytes of a regular file. Raises as :func:`open_file`."""
    with open_file(path) as stream:
        try:
            return stream.read(most)
        except OSError as error:
            raise ClusterUnavailable(f"{path} cannot be read: {error.strerror}") from error


def last_line(path: Path) -> str:
    """Return the last line of a file that says something. Empty: there is none, or no such file."""
    try:
        with open_file(path) as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 4096))
            text = stream.read(4096).decode(errors="replace")
    except (RunNotFound, InvalidDocument):
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
