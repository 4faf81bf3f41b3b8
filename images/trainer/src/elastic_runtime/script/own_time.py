"""How long this rank works on a step, apart from waiting for the others: all ranks need the same time for a step.

A collective ends when its last rank has come to it. So the rank that holds the others back waits least. How
long a rank waits is estimated from looks at its training thread, at random times: a thread waits if it is inside a
framework where ranks wait for each other. Inside PyTorch it also has to be asleep, since a backward pass both computes
and waits; Horovod spins while it waits. Neither time of the processor nor time in commits tells who is slow: see
``docs/failures.md``.

A process that is stopped, or that gets no processor, does not look either. So the time since the look before counts
as waiting only as far as it was meant to pass.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from elastic_runtime.protocol.rank_link import OWN_TIME, OwnTime, RankLink, shared_link
from elastic_runtime.script.frames import frame_of
from elastic_runtime.script.standing import Position, ledger, waits_in

PAUSE = 0.2
"""Seconds between two looks, on average."""
LATE = 2.0
"""How many times as long as it was meant to be the time between two looks may be, and count whole."""
_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples are spread evenly between whole numbers."""
_SPINS = "horovod"
"""Framework whose threads do not sleep while they wait."""
_BACKWARD = "torch.autograd"


class OwnTimes:
    """Sum up what was seen, and send it.

    Args:
        link: to the agent.
        interval: seconds between two messages.
    """

    def __init__(self, link: RankLink, interval: float) -> None:
        self._link, self._interval = link, interval
        self._world = self._first = 0
        self._last: float | None = None
        """When it was looked last; None: not since the rank trains."""
        self._seconds = self._waited = 0.0

    def seen(self, now: float, pause: float, position: Position, waits: bool) -> None:
        """Take in a look.

        Args:
            now: monotonic seconds.
            pause: seconds that were to pass since the look before.
            position: of this rank.
            waits: it waits for others.
        """
        if self._last is None or not position.trains or position.world != self._world:
            self._begin(now if position.trains else None, position)
            return
        passed, self._last = now - self._last, now
        self._seconds += passed
        if waits:
            self._waited += min(passed, LATE * pause)
        if self._seconds >= self._interval:
            self._link.send(OwnTime(self._seconds, self._waited, max(0, position.done - self._first)))
            self._begin(now, position)

    def _begin(self, now: float | None, position: Position) -> None:
        self._world, self._first, self._last = position.world, position.done, now
        self._seconds = self._waited = 0.0


@cache
def measure() -> None:
    """Have this process's own time measured in a thread, if the launcher has asked for that; once."""
    interval, link = os.environ.get(OWN_TIME), shared_link()
    if interval and link.connected:
        arguments = (ledger().position, link, float(interval))
        threading.Thread(target=_measure, args=arguments, name="own-time", daemon=True).start()


def _measure(position: Callable[[], Position], link: RankLink, interval: float) -> None:
    times, usual = OwnTimes(link, interval), min(PAUSE, interval / 5)
    for turn in itertools.count():
        pause = usual * (0.5 + turn * _GOLDEN % 1.0)  # A fixed time could be in step with the training's.
        time.sleep(pause)
        if not link.connected:
            return
        at = position()
        times.seen(time.monotonic(), pause, at, at.trains and is_waiting(at))


def is_waiting(at: Position) -> bool:
    """Whether the thread that trains waits for other ranks. False if that cannot be told."""
    with frame_of(at.thread) as frame:
        where = waits_in(frame)
    if where == _BACKWARD and _has_gpu():
        return False  # Another thread runs the backward pass there.
    return where == _SPINS or (bool(where) and _sleeps(at.native))


def _has_gpu() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def _sleeps(native: int) -> bool:
    try:
        stat = Path(f"/proc/self/task/{native}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "S"
