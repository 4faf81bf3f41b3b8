"""How long the ranks of a worker need to leave the world, from what was seen of this run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from elastic_runtime.launcher.decision.facts import CommitFact
from elastic_runtime.run.waits import COMMIT_CAUTION, COMMIT_OVERDUE

GAPS = 50
"""Times between commits that count: the latest ones."""
LATEST = 5
"""Writes and departures that count."""


def time_to_leave(commit: float, write: float, departure: float) -> float:
    """Seconds that ranks need to leave a world, at most, by the longest that each of these took, in seconds.

    Args:
        commit: from one commit to the next.
        write: of a checkpoint.
        departure: from the request to leave to the world without them.
    """
    return COMMIT_CAUTION * (commit + write + departure)


class LeaveTime:
    """Estimate it: ranks leave at a commit, after a checkpoint that is being written, by a change of the world.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._writes: deque[float] = deque(maxlen=LATEST)
        self._departures: deque[float] = deque(maxlen=LATEST)
        self._asked: float | None = None
        """When ranks were asked to leave."""
        self._last: float | None = None
        """When the present world was complete, or rank 0 has told of a commit of it; None: there is no world."""
        self._committed = False
        """Rank 0 has told of a commit of the present world."""
        self._told = 0

    def committed(self) -> None:
        """Rank 0 has told of a commit, as it does a few times a second at most."""
        now = self._now()
        if self._last is not None and self._committed:
            self._gaps.append(now - self._last)
        self._last, self._committed = now, True
        self._told += 1

    def wrote(self, seconds: float) -> None:
        """A checkpoint took so long to write."""
        self._writes.append(seconds)

    def asked(self) -> None:
        """Ranks are asked to leave, and nobody is to come."""
        self._asked = self._now()

    def new_world(self) -> None:
        """A world is complete."""
        now = self._now()
        if self._asked is not None:
            self._departures.append(now - self._asked)
        self._asked, self._last, self._committed = None, now, False

    @property
    def commits(self) -> CommitFact | None:
        """How the present world commits. None: there is no world."""
        if self._last is None:
            return None
        return CommitFact(self._last, max(self._gaps, default=None), self._committed, self._told)

    def seconds(self) -> float | None:
        """Return the estimate in seconds; None: no two commits were seen yet, or the next is overdue."""
        commits = self.commits
        if commits is None or commits.longest is None:
            return None
        if self._now() - commits.last > commits.usual + COMMIT_OVERDUE:
            return None
        return time_to_leave(commits.longest, max(self._writes, default=0.0), max(self._departures, default=0.0))
