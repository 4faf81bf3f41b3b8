"""Where the time went, in work that the oracle would have done meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why less was trained than the oracle would have. The first eight stop the whole training."""

    STARTING = "starting"
    """The first world is not there yet."""
    RESIZING = "resizing"
    """A planned reset: workers join or leave."""
    RECOVERING = "recovering"
    """A loss: until the others know, and have formed a new world."""
    RESTARTING = "restarting"
    """Nobody is left who holds the state: from the newest durable checkpoint."""
    WAITING = "waiting"
    """Fewer workers than the minimum, though the oracle has enough, which needs no start."""
    CHECKPOINTING = "checkpointing"
    """The copy to host memory."""
    STANDING = "standing"
    """Everybody will be taken: all stand at the last commit that could be made durable before."""
    STOPPED = "stopped"
    """The run has ended by a limit (max_wait, start_timeout …)."""
    REDONE = "redone"
    """Work that was lost, and done again."""
    MACHINE_STARTING = "machine starting"
    """One of the machines has no worker yet that is ready; the others train."""
    LEFT_EARLY = "left early"
    """One of the machines had a notice and trains no more, though it is still there."""
    UNUSED = "unused"
    """One of the machines could train and does not: not wanted, or not joined yet."""


@dataclass(slots=True)
class Account:
    """Adds up. Work is in seconds of a worker that trains alone, the rest in seconds of the wall clock."""

    oracle: float = 0.0
    """What it has trained."""
    training: float = 0.0
    """Seconds in which there was a world that trained."""
    paused: dict[Cause, float] = field(default_factory=dict)
    """Seconds in which none did, by cause."""
    missed: dict[Cause, float] = field(default_factory=dict)
    """Work of the oracle that was not done, by cause."""

    def train(self, seconds: float, oracle: float, own: float, others: Mapping[Cause, int]) -> None:
        """A world trained, some machines did not.

        Args:
            seconds: so long.
            oracle: its rate.
            own: the world's rate.
            others: machines of the oracle that are not in the world.
        """
        self.oracle += seconds * oracle
        self.training += seconds
        idle = sum(others.values())
        for cause, count in others.items():
            self._miss(cause, seconds * (oracle - own) * count / idle if idle else 0.0)

    def pause(self, seconds: float, oracle: float, cause: Cause) -> None:
        """Nobody trained."""
        self.oracle += seconds * oracle
        self.paused[cause] = self.paused.get(cause, 0.0) + seconds
        self._miss(cause, seconds * oracle)

    def redo(self, work: float) -> None:
        """Work was lost."""
        self._miss(Cause.REDONE, work)

    def _miss(self, cause: Cause, work: float) -> None:
        if work:
            self.missed[cause] = self.missed.get(cause, 0.0) + work
