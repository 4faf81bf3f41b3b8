"""What every rank of a benchmark does first, whoever has started it."""

from __future__ import annotations

import os


def take_own_session() -> None:
    """Give the rank a session of its own, as horovodrun and, here, torchrun do anyway.

    Linux shares the processor between sessions first (``sched_autogroup_enabled``, sched(7)), and on two crowded cores
    ranks that shared one session made twice the steps. That says something about sessions and nothing about launchers;
    in pods, which are control groups of their own, there is none of it.
    """
    if os.getsid(0) != os.getpid():
        if os.getpgid(0) == os.getpid():  # setsid(2) refuses a process group's leader
            os.setpgid(0, os.getpgid(os.getppid()))
        os.setsid()
