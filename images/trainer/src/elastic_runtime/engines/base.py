"""What the launcher knows of an engine: a session in which ranks form worlds, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class SessionState(StrEnum):
    """Where the present life of the ElasticDriver stands."""

    FORMING = "forming"
    """Ranks of the next world are decided, and connecting to each other: no change now."""
    SETTLED = "settled"
    """All of them are connected and train."""
    WAITING = "waiting"
    """All of them stand at the barrier, for too few hosts are listed."""
    FINISHING = "finishing"
    """A rank of the world has ended with code 0; the others are about to. No change any more."""
    ENDED = "ended"
    """See :attr:`SessionFact.end`."""


class SessionOutcome(StrEnum):
    """How a session ended, as far as deciding goes."""

    SUCCEEDED = "succeeded"
    EARLY_EXIT = "early_exit"
    FAILED = "failed"
    """Its ranks ended by themselves, with codes other than 0."""
    LOST = "lost"
    """Its ranks were killed, or went with their workers."""


@dataclass(frozen=True, slots=True)
class SessionFact:
    """The present life of the ElasticDriver."""

    state: SessionState
    listed: tuple[str, ...]
    """Rank ids that it may use, in order."""
    outcome: SessionOutcome | None = None
    """Set exactly when the state is ENDED."""
    detail: str = ""
    """For people: more about the outcome."""


class RankRunner(Protocol):
    """Where ranks run: the pool of workers."""

    def interface(self, rank_id: str, stand_in: bool) -> str | None:
        """Network interface of the worker that would run this rank; None when there is none."""

    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str], stand_in: bool) -> int:
        """Run it to its end; :data:`LOST` when its worker goes. Returns the exit code."""

    def stop_ranks(self) -> None:
        """Ask every rank to end."""
