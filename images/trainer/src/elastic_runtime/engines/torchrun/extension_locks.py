"""Locks of torch's compiled extensions that a killed process has left: every later one would wait for them for good.

``torch.utils.cpp_extension.load`` keeps a file ``lock`` while it compiles an extension, and while it looks whether it
has to. DeepSpeed does so at each start on a machine without GPUs, and ranks of this engine are killed in any second.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from functools import cache, wraps
from pathlib import Path

from torch.utils.file_baton import FileBaton

from elastic_runtime.logs import script_logger

log = script_logger(__name__)


@cache
def take_over_stale_locks() -> None:
    """From now on, in this process."""
    acquire = FileBaton.try_acquire

    @wraps(acquire)
    def try_acquire(self: FileBaton) -> bool:
        path = Path(self.lock_file_path)
        with _deciding(path):
            if not acquire(self):
                if _is_held(path):
                    return False
                log.warning("%s is of a process that is gone, and is taken over", path)
                path.unlink(missing_ok=True)
                if not acquire(self):
                    return False
            # Who cannot see this process, in another pod over a shared folder, sees this.
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]  # it has been acquired
        return True

    FileBaton.try_acquire = try_acquire  # type: ignore[method-assign]


@contextlib.contextmanager
def _deciding(path: Path) -> Iterator[None]:
    """One process at a time: of several that find a stale lock, a later one would take away an earlier one's new lock.

    A file system without locks goes without.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            file = held.enter_context(path.with_name(f".{path.name}.deciding").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_held(path: Path) -> bool:
    """Whether a process that lives has it open, as torch has its locks, or locked."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            wanted = os.fstat(file.fileno())
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(_is_open(descriptor, wanted) for descriptor in Path("/proc").glob("[0-9]*/fd/*"))


def _is_open(descriptor: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(descriptor.stat(), wanted)
    except OSError:
        return False
