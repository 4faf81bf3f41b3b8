"""Locks of files, held as long as their process lives: proof of life without pids."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

LOCK_ATTEMPTS, LOCK_PAUSE = 20, 0.05
"""How often to try for the lock, and seconds between two tries."""


def take(descriptor: int) -> bool:
    """Lock it; whoever only looks whether it is locked holds it for an instant, which is waited for."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
        else:
            return True
    return False


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file. Leaves no file where there is none."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who ask at once do not take each other for the holder.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
