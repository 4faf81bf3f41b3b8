"""The processes of a benchmark, all of them, however they were started.

``horovodrun`` puts its ranks into sessions of their own, so neither a process group nor a parent's death reaches them.
The harness makes itself the subreaper of its descendants (``prctl(2)``, Linux): an orphan becomes its child, and its
children at any moment are everything that it has started and that still lives.
"""

from __future__ import annotations

import ctypes
import os
import signal
from types import FrameType

import psutil

_PR_SET_CHILD_SUBREAPER = 36
GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL."""


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def handle_sigterm() -> None:
    """Take it as ctrl-C: everything that was started is ended on the way out."""
    signal.signal(signal.SIGTERM, _interrupt)


def end_descendants(max_wait: float = 0.0) -> int:
    """End whatever this process has started and is still there; returns how many those were.

    SIGTERM, then SIGKILL after :data:`GRACE`, again until a look finds none: one may fork while it is being ended.

    Args:
        max_wait: seconds first given to all of them to end by themselves.
    """
    psutil.wait_procs(_living(), timeout=max_wait)
    ended: set[int] = set()
    while living := _living():
        ended.update(process.pid for process in living)
        for process in living:
            _signal(process, signal.SIGTERM)
        _, stubborn = psutil.wait_procs(living, timeout=GRACE)
        for process in stubborn:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(stubborn, timeout=GRACE)
    return len(ended)


def kill(pid: int) -> None:
    """SIGKILL one process. Raises ProcessLookupError when it is gone."""
    os.kill(pid, signal.SIGKILL)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _living() -> list[psutil.Process]:
    living = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                process.wait(0)
            else:
                living.append(process)
        except (psutil.NoSuchProcess, psutil.TimeoutExpired):
            continue
    return living


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
