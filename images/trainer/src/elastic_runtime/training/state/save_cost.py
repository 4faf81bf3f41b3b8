"""What copies of a state cost its training, in words; pure."""

from __future__ import annotations

import math

MUCH = 0.05
"""Share of a training's time from which on it is told."""
SHORT = 0.001
"""Seconds of a copy that are never much: the steps of such models are short, too."""
LITTLE = 0.01
"""Share to which the advice leads."""
LEAST_COPIES, LEAST_TIME = 100, 30.0
"""Copies, and seconds of training, after which it is judged, once."""
MOST_CALLS = 10_000
"""Of ``commit_every``."""


class SaveCost:
    """Time that commits take to copy the state. Seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._copies = 0
        self._seconds = 0.0
        self._since: float | None = None
        self._judged = False

    def saved(self, begin: float, end: float, every: int = 1) -> str:
        """A commit has copied the state in this time. Returns what is to be told of all commits, mostly nothing.

        Args:
            begin: of the copy.
            end: of the copy.
            every: ``commit_every`` of the state.
        """
        if self._judged:
            return ""
        if self._since is None:  # The first copy takes memory from the system.
            self._since = end
            return ""
        self._copies += 1
        self._seconds += end - begin
        time = end - self._since
        if self._copies < LEAST_COPIES or time < LEAST_TIME:
            return ""
        self._judged = True
        return _told(self._seconds / self._copies, time / self._copies, every)


def _told(copy: float, whole: float, every: int) -> str:
    if copy < max(SHORT, MUCH * whole):
        return ""
    rest = whole - copy
    words = (
        f"copies of the state take {copy / whole:.0%} of the training's time: {1000 * copy:.1f} of "
        f"{1000 * whole:.1f} ms from one commit to the next"
    )
    if not rest:
        return words
    wanted = math.ceil(every * copy * (1 - LITTLE) / (LITTLE * rest))
    if wanted > MOST_CALLS:
        return words
    more = "and losing a worker costs what was trained in as many calls of commit()"
    return f"{words}. With commit_every={wanted} it is {LITTLE:.0%}, {more}"
