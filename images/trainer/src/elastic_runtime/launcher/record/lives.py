"""Lives of a script from one start of its processes to the next: whether it resumed, and which sizes work.

A life is from one start of all processes to the next: a world, with an engine that restarts ranks, else a session.
"""

from __future__ import annotations


class Lives:
    """Told of what happens, in the order of happening."""

    def __init__(self) -> None:
        self._first: int | None = None
        """Step that the first life told first."""
        self._before: int | None = None
        """Step that the newest life before this one told last."""
        self._step: int | None = None
        self._progress = self._complete = False
        self._size = self._worked = 0
        self.refused: frozenset[int] = frozenset()
        """Ranks of worlds in which the script failed at once, though it had worked with others."""

    def begins(self, size: int) -> None:
        """All processes are started afresh, for a world of so many ranks."""
        if self._complete:
            self._worked = self._size
        if self._step is not None:
            self._before = self._step
        self._size, self._step, self._progress, self._complete = size, None, False, False

    def world_complete(self) -> None:
        """All of them are there."""
        self._complete = True

    def resumed(self) -> None:
        """They tell by themselves from where they go on."""
        self._before = None

    def stepped(self, step: int | None) -> str | None:
        """A rank has told of that step, or of something; what there is to say about it, for people."""
        self._progress = True
        if step is None:
            return None
        is_first, self._step = self._step is None, step
        if self._first is None:
            self._first = step
        if not is_first or self._before is None or step >= self._before:
            return None
        if step <= self._first:
            return f"the script started over: step {step} after {self._before}; it has loaded no checkpoint of its own"
        return f"the script went back: step {step} after {self._before}; what lay between is done again"

    def worked_before(self, size: int) -> int:
        """Ranks of the last world that worked, of another size than this one, which has told of nothing yet; else 0."""
        if self._progress or self._worked == size or self._worked in self.refused:
            return 0
        return self._worked

    def refuse(self, size: int) -> None:
        """The script failed at once with so many ranks."""
        self.refused |= {size}
        self._complete = False

    def asked(self, size: int) -> None:
        """Allow a world of so many ranks again, because a user has requested it."""
        self.refused -= {size}
