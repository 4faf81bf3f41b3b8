"""The folder of what is running, and that only one at a time works on it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster_kit.errors import ClusterError

VARIABLE = "ELASTIC_TRAINING_CLUSTER_STATE"


def state_folder() -> Path:
    """Named by :data:`VARIABLE`; by default one a user, the same for all clones of this repository."""
    default = Path(tempfile.gettempdir(), f"elastic-training-cluster-{os.geteuid()}")
    return Path(os.environ.get(VARIABLE) or default)


@contextmanager
def held(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Make the folder and hold it against other processes; removed at the end when nothing is in it.

    Args:
        folder: of what is running.
        on_wait: called when another process holds it and this one has to wait.

    Raises:
        ClusterError: somebody else's.
    """
    descriptor = _open(folder, on_wait)
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()
        os.close(descriptor)


def _open(folder: Path, on_wait: Callable[[], None]) -> int:
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        mine = os.fstat(descriptor)
        if mine.st_uid != os.geteuid() or mine.st_mode & 0o077:
            os.close(descriptor)
            raise ClusterError(f"{folder} is open to others; remove it, or name another one in {VARIABLE}")
        # Whoever held it before may have removed it.
        with suppress(FileNotFoundError):
            if folder.stat().st_ino == mine.st_ino:
                return descriptor
        os.close(descriptor)
