"""How launchers and agents share the cores of a machine with ranks."""

from __future__ import annotations

import contextlib
import os

VARIABLE = "ELASTIC_RUNTIME_BESIDE_RANKS"
"""Set in processes for which :func:`stand_beside_ranks` has changed something, and in their children."""


def stand_beside_ranks() -> None:
    """Have this thread, and those that it starts, not take a core from a rank whenever there is something to do.

    It has the share of cores that it always has, but waits for one that is free, or for its turn (``SCHED_BATCH``,
    sched(7)). Each word of a rank wakes an agent and a launcher. If each takes a core at once, one rank loses it, and
    all others wait for that rank. A scheduling policy that was chosen for this process stays.
    """
    with contextlib.suppress(OSError):  # A sandbox may forbid it.
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.environ[VARIABLE] = "1"


def stand_beside_ranks_no_more() -> None:
    """Undo that, in a child that has inherited it."""
    with contextlib.suppress(OSError):
        if os.environ.pop(VARIABLE, None) and os.sched_getscheduler(0) == os.SCHED_BATCH:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
