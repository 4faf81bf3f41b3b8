"""Durable checkpoints, as ``elastic_runtime.training.checkpointing`` writes them: every so often, and on a notice."""

from __future__ import annotations

import math

from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.rehearsal.progress import Progress
from elastic_runtime.rehearsal.timeline import Event, Timeline

HANDOVER_PAUSE = 1.0
"""Seconds, as in the real one: of several notices at once, one is heeded."""
NEVER = 1e9
"""Seconds until a checkpoint that is not written; a number, because commits are computed from it."""
_EARLY = 0.01
"""Seconds. A commit that is so much too early is a matter of rounding."""


class Checkpoints:
    """Rank 0's writer. One is written after the other, beside the training.

    Args:
        timeline: of the simulation.
        progress: of the training.
        costs: of writing.
        kept: False: there is no store for them.
    """

    def __init__(self, timeline: Timeline, progress: Progress, costs: Costs, *, kept: bool = True) -> None:
        self._timeline, self._progress, self._costs, self._kept = timeline, progress, costs, kept
        self._begun: float | None = None
        self._handover = False
        self._busy_until = 0.0
        self._writing: list[tuple[int, Event]] = []
        self._handed_over = -math.inf
        self.written = 0
        """How many are durable."""

    def open(self) -> None:
        """A session trains; its first periodic one is due after a whole period."""
        self._begun = self._timeline.now

    def want_handover(self) -> None:
        """A notice has come, unless a handover taken a moment ago serves it."""
        self._handover |= self._timeline.now - self._handed_over > HANDOVER_PAUSE

    @property
    def due_in(self) -> float:
        """Seconds until one is due, to be taken at the first commit then."""
        if not self._kept:
            return NEVER
        if self._handover:
            return 0.0
        if self._begun is None:
            return max(0.0, self._left_to_write)
        return max(0.0, self._begun + self._costs.checkpoint_every - self._timeline.now, self._left_to_write)

    @property
    def due(self) -> bool:
        """Whether this commit is to be made durable."""
        return self.due_in <= _EARLY

    @property
    def _left_to_write(self) -> float:
        return self._busy_until - self._timeline.now

    @property
    def under_way(self) -> int:
        """How many are being written."""
        return len(self._writing)

    def takes_care_of(self, steps: int) -> bool:
        """Whether the commit after so many steps is durable, or will be."""
        return not self._kept or steps <= max((self._progress.durable, *(each for each, _ in self._writing)))

    def take(self, steps: int) -> None:
        """Of the commit after so many steps; the training pauses for :attr:`Costs.checkpoint_stall` meanwhile."""
        self._begun = self._timeline.now
        if self._handover:
            self._handover, self._handed_over = False, self._timeline.now
        begin = max(self._timeline.now + self._costs.checkpoint_stall, self._busy_until)
        self._busy_until = begin + self._costs.checkpoint_write
        self._writing.append((steps, self._timeline.at(self._busy_until, self._publish)))

    def writer_lost(self) -> None:
        """What rank 0 was writing comes to nothing; the next rank 0 begins at its next commit."""
        if self._writing:
            self._begun = None
        for _, event in self._writing:
            event.cancel()
        self._writing.clear()
        self._busy_until = 0.0

    def _publish(self) -> None:
        steps, _ = self._writing.pop(0)
        self._progress.durable = max(self._progress.durable, steps)
        self.written += 1
