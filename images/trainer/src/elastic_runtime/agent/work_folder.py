"""The temporary folder of an agent, and the removal of folders that killed agents of this machine have left.

An agent that is killed cannot remove its folder, which may hold gigabytes of its ranks' outputs, in memory where it is
in ``/dev/shm``. So an agent holds a lock (flock) on its own while its process lives, and removes those without one.
Their names have an id of this boot: processes under one kernel see each other's locks, also in other containers and on
file systems that keep locks to one machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import tempfile
from pathlib import Path

from elastic_runtime.errors import ClusterUnavailable

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it
"""Can be written to in a container whose file system is read-only."""
MOST, MOST_LOOKED_AT = 16, 10_000
"""Folders that an agent removes, and entries among which it looks for them."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ATTEMPTS = 5


class WorkFolder:
    """A private folder (0700), which is this process' until :meth:`remove`, or until the process ends.

    Raises:
        ClusterUnavailable: a folder can be made neither for temporary files (TMPDIR) nor in shared memory.
    """

    def __init__(self) -> None:
        for _ in range(_ATTEMPTS):
            self.path = new_folder(prefix(), None)
            if (lock := _locked(self.path)) is not None:
                self._lock = lock
                return
        raise ClusterUnavailable(f"other processes remove the folders that this worker makes in {self.path.parent}")

    def remove(self) -> None:
        """With all that is in it. Blocks."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked(path: Path) -> int | None:
    """A descriptor of that new folder; None: another agent has taken it for abandoned, before it was locked."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # Where there are no locks, no other agent gets one either, and folders stay.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
    if os.fstat(lock).st_nlink:
        return lock
    os.close(lock)
    return None


def prefix() -> str:
    """Return how the names of such folders begin on this machine, in this boot; without /proc nothing is ever found."""
    try:
        return f"elastic-{_BOOT.read_text(encoding='ascii')[:8]}-"
    except OSError:
        return f"elastic-pid{os.getpid()}-"


def remove_abandoned() -> None:
    """Remove up to :data:`MOST` folders of this user whose agents are gone. Blocks."""
    begin = prefix()
    for find in (tempfile.gettempdir, lambda: SHARED_MEMORY):
        with contextlib.suppress(OSError), os.scandir(folder := Path(find())) as entries:
            ours = [each.name for each in itertools.islice(entries, MOST_LOOKED_AT) if each.name.startswith(begin)]
            removed = (name for name in ours if _remove_unless_held(folder / name))
            for _ in itertools.islice(removed, MOST):
                pass


def _remove_unless_held(path: Path) -> bool:
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, lock)
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.debug("removing %s, which a killed worker has left", path)
            shutil.rmtree(path, ignore_errors=True)
            return True
    return False


def new_folder(prefix: str, within: Path | None) -> Path:
    """A private one.

    Args:
        prefix: of its name.
        within: where to make it; None: for temporary files (TMPDIR), else in shared memory.

    Raises:
        ClusterUnavailable: there is no place for it here.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    except OSError as error:
        if within is None and SHARED_MEMORY.is_dir():
            try:
                return Path(tempfile.mkdtemp(prefix=prefix, dir=SHARED_MEMORY))
            except OSError:
                pass
        raise no_place(error) from error


def no_place(error: OSError) -> ClusterUnavailable:
    """Return what says that a folder, or something in it, cannot be made."""
    return ClusterUnavailable(
        f"no folder for files can be made on this worker: {error.strerror or error}. Give it a folder with room, "
        "named by TMPDIR (on Kubernetes a volume with empty_dir)"
    )
