"""Steps: done, committed in memory, durable in the store."""

from __future__ import annotations

import math

_DUST = 1e-7
"""Of a step: less is a rounding error."""


class Progress:
    """How far the training is. A step is one global batch, the same work at any world size.

    Args:
        step_work: of one step, in seconds of a worker that trains alone.
        commit_steps: steps from one commit in memory to the next.
    """

    def __init__(self, step_work: float, commit_steps: int = 1) -> None:
        self._step_work, self._commit_steps = step_work, commit_steps
        self._position = 0.0
        self.durable = 0
        """Steps that a restart finds."""
        self.lost_steps = 0
        """Whole steps that were done and had to be done again."""
        self.lost_work = 0.0
        """All work that was done for nothing, the begun steps included; unit as ``step_work``."""

    @property
    def commit_work(self) -> float:
        """From one commit to the next."""
        return self._step_work * self._commit_steps

    @property
    def position(self) -> float:
        """Steps done, with the part of the one that was begun."""
        return self._position

    @property
    def steps(self) -> int:
        """Whole steps done."""
        return math.floor(self._position + _DUST)

    @property
    def committed(self) -> int:
        """Steps that survive in memory."""
        return self.steps // self._commit_steps * self._commit_steps

    @property
    def work(self) -> float:
        """Done, and not lost."""
        return self._position * self._step_work

    def train(self, work: float) -> None:
        """Do so much."""
        self._position += work / self._step_work

    def until_commit(self, rate: float, later: float = 0.0) -> float:
        """Seconds until the first commit that is at least so much ``later``, when training at this rate.

        A commit that has just been counts.
        """
        least = (self._position + later * rate / self._step_work) / self._commit_steps
        boundary = math.ceil(least - _DUST / self._commit_steps) * self._commit_steps
        return max(0.0, boundary - self._position) * self._step_work / rate

    def commit(self) -> int:
        """Stand exactly at the commit that is due now; returns the steps."""
        self._position = float(round(self._position))
        return self.committed

    def back_to(self, steps: int) -> None:
        """Go on from there: what came after is lost."""
        self.lost_steps += self.steps - steps
        self.lost_work += max(0.0, self.work - steps * self._step_work)
        self._position = float(steps)
