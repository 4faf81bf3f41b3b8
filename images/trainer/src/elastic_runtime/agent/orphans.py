"""Processes that killed agents leave behind."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of whatever our descendants leave behind, so that it can be ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans(keep: Collection[int] = ()) -> None:
    """Kill and reap every child but those pids: what a killed agent's ranks have left behind."""
    for child in psutil.Process().children():
        if child.pid in keep:
            continue
        try:
            for process in (*child.children(recursive=True), child):
                process.kill()
            os.waitpid(child.pid, 0)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
