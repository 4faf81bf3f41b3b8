"""A rank that leaves a world gives way to those that stay, which may be on the same machine."""

from __future__ import annotations

import contextlib
import os

from elastic_runtime.clock import utc_now
from elastic_runtime.protocol.rank_link import WORKER_NAME, RankLink

NICER = 10
"""By how much: while others fill all cores, such a process has a tenth of the share of one of theirs."""
ROOM = 10.0
"""Seconds that are left until its worker is taken, at least: its end is a tenth of a second of work with torch."""


def give_way(link: RankLink) -> None:
    """Lower the priority of this process, which has only its end before it, unless its worker is taken soon.

    Where each session is a group of its own to the scheduler (``sched_autogroup_enabled``, sched(7)), a process that
    leads one lowers that of its group, too.
    """
    deadline = link.leaving.get(os.environ.get(WORKER_NAME, ""))
    if deadline is not None and (deadline - utc_now()).total_seconds() < ROOM:
        return
    with contextlib.suppress(OSError):
        os.nice(NICER)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as group:
            group.write(str(NICER))
