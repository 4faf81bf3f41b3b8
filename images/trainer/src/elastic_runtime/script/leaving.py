"""A word to any script before workers are taken: ``elastic_runtime.on_notice(callback)``, ``elastic_runtime.notice()``.

The agent of every worker tells its ranks who will be taken and when; this is what a script is told of it. The link is
looked at where the script's elastic state commits or checks for changed hosts (Horovod's own states, too, and
:class:`~elastic_runtime.torch.DurableState`), before a rank goes from one world to the next, while it waits for one,
and in :func:`notice`. A script that does none of these hears nothing, and where no agent is, nobody does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.rank_link import WORKER_NAME, RankLink, shared_link
from elastic_runtime.world import WORLD, current_world

LONGEST = 120.0
"""Seconds for which training waits for callbacks, where the deadline does not come before."""
MOST_CALLBACKS = 100
_log = script_logger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """Workers of the run will be taken."""

    deadline: datetime
    """Of the first of them; aware."""
    workers: tuple[str, ...]
    """Their names, in order."""
    mine: bool
    """Whether this rank's worker is one of them."""
    everyone: bool
    """Whether all that train will be taken, as far as is known: nobody would be left with what is in memory."""


Callback = Callable[[Notice], object]


class Leaving:
    """The callbacks of a process.

    Args:
        link: to the agent.
        worker: that this rank is on.
        now: wall clock.
    """

    def __init__(self, link: RankLink, worker: str, now: Callable[[], datetime] = utc_now) -> None:
        self._link, self._worker, self._now = link, worker, now
        self._callbacks: list[Callback] = []
        self._told: dict[int, Notice] = {}
        self._running: threading.Thread | None = None

    def add(self, callback: Callback) -> None:
        """Call it from the next look on. Raises InvalidSettings: too many, or none at all."""
        if not callable(callback):
            raise InvalidSettings("on_notice", f"{callback!r} cannot be called", "Give a function of one argument")
        if len(self._callbacks) == MOST_CALLBACKS:
            raise InvalidSettings("on_notice", f"{MOST_CALLBACKS} callbacks are there", "Register once, not every step")
        self._callbacks.append(callback)

    def newest(self) -> Notice | None:
        """What is ahead, by what was heard so far."""
        now, last = self._now(), self._link.last_commit.deadline
        ahead = {worker: deadline for worker, deadline in self._link.leaving.items() if deadline > now}
        everyone = last is not None and last > now
        deadlines = [*ahead.values(), *([last] if last is not None and everyone else [])]
        if not deadlines:
            return None
        return Notice(min(deadlines), tuple(sorted(ahead)), everyone or self._worker in ahead, everyone)

    def look(self) -> None:
        """Hear, and call whoever has not been told of what is ahead; returns when they have, or time is up.

        They are called one after the other in a thread of their own, which nobody waits for any longer then.
        """
        if not self._callbacks or (self._running and self._running.is_alive()):
            return
        self._link.hear()
        notice = self.newest()
        due = [each for each in enumerate(self._callbacks) if notice and _is_news(notice, self._told.get(each[0]))]
        if notice is None or not due:
            return
        self._told |= {number: notice for number, _ in due}
        self._running = threading.Thread(target=_call, args=([each for _, each in due], notice), name="on-notice")
        self._running.daemon = True
        self._running.start()
        max_wait = min(max(0.0, (notice.deadline - self._now()).total_seconds()), LONGEST)
        self._running.join(max_wait)
        if self._running.is_alive():
            _log.warning("a callback of on_notice has not returned within %.0f s: training goes on beside it", max_wait)


def _is_news(notice: Notice, told: Notice | None) -> bool:
    return (
        told is None
        or notice.deadline < told.deadline
        or not {*notice.workers} <= {*told.workers}
        or (notice.everyone and not told.everyone)
    )


def _call(callbacks: list[Callback], notice: Notice) -> None:
    for callback in callbacks:
        begun = time.monotonic()
        try:
            callback(notice)
        except Exception:  # noqa: BLE001  # it is the script's
            _log.exception("a callback of on_notice has failed, training goes on")
        _log.debug("a callback of on_notice took %.1f s", time.monotonic() - begun)


def on_notice(callback: Callback) -> Callback:
    """Have ``callback(notice)`` called on every rank when workers are about to be taken; also as a decorator.

    It is called at the rank's next commit, when the state is saved, or at the next :func:`notice`: once for what is
    known then, and again when more workers follow, a deadline comes nearer, or nobody will be left. Training waits for
    it, up to the deadline and :data:`LONGEST` at most; so what it writes is of one step. It runs in a thread of its
    own, on ranks that hear of it at different steps: it must not call a collective. What it raises is logged.

    Args:
        callback: takes a :class:`Notice`.

    Returns:
        The callback.

    Raises:
        InvalidSettings: it cannot be called, or there are :data:`MOST_CALLBACKS` of them.
    """
    if WORLD in os.environ:  # Of a rank that was started cold, nobody has prepared the engine yet.
        current_world().prepare()
    _shared().add(callback)
    return callback


def notice() -> datetime | None:
    """When the first of the workers that were announced will be taken; None: nobody, as far as this rank knows.

    Looks at once, and calls what :func:`on_notice` was given where there is news. Never waits but for that. The
    deadline of a worker that has gone already stays until it has passed.
    """
    link, leaving = shared_link(), _shared()
    leaving.look()
    link.hear()
    ahead = leaving.newest()
    return None if ahead is None else ahead.deadline


def call_back() -> None:
    """For engines and states, at a commit and where a world ends."""
    _shared().look()


@cache
def _shared() -> Leaving:
    return Leaving(shared_link(), os.environ.get(WORKER_NAME, ""))
