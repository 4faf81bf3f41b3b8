"""When the processes of a world are ended and the next are started: decided from what is known, without any I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from elastic_runtime.engines.base import SessionOutcome, SessionState
from elastic_runtime.engines.exits import ABORTED


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a session knows."""

    listed: tuple[str, ...]
    """Rank ids that may be used, in the order in which they are numbered."""
    able: frozenset[str]
    """Those of them whose workers are here."""
    minimum: int
    """Fewest ranks of a world."""
    members: tuple[str, ...] = ()
    """Members of the present world, by rank. Empty before the first."""
    begun: frozenset[str] = frozenset()
    """Members whose processes have said that they begin with the script."""
    ended: frozenset[str] = frozenset()
    """Members whose processes have ended, for whatever reason."""
    exits: Mapping[str, int] = field(default_factory=dict)
    """Codes of those that have ended before anybody asked them to, in the order in which they did."""
    gave_up: frozenset[str] = frozenset()
    """Those of them that have failed and say that another one is gone."""
    finished: frozenset[str] = frozenset()
    """Members that had ended with code 0 when all were asked to end, which was not known then."""
    interrupted: bool = False
    """All were asked to write their checkpoint and end."""
    waited: bool = False
    """Since one has failed there was time to hear whether another one was lost, for whose sake it may have failed."""
    before: int = 0
    """Ranks of the last world that worked, where this one has another size and has told of no progress; else 0."""
    soon: bool = False
    """This world's processes were started a short time ago."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision about worlds."""

    state: SessionState
    outcome: SessionOutcome | None = None
    """Where the session has ended."""
    form: tuple[str, ...] = ()
    """Rank ids of the next world, by rank: start their processes."""
    interrupt: bool = False
    """Ask all processes of the present world to write their checkpoint and end."""
    kill: bool = False
    """End those that are left at once: they wait for one that will never come."""
    stacks: bool = False
    """Have those write first where they stand: one of them may be the one that the others have waited for."""


def decide(facts: Facts) -> Decision:
    """Return which processes end or start next, or how the session ends."""
    if not facts.members:
        return Decision(SessionState.FORMING, form=facts.listed)
    over = facts.ended.issuperset(facts.members)
    if facts.interrupted:
        return _next(facts) if over else Decision(SessionState.FORMING)
    codes = tuple(facts.exits.values())
    if over:
        refused = SessionOutcome.REFUSED if _refused(facts) else None
        return Decision(SessionState.ENDED, refused or outcome_of(facts.exits, facts.gave_up))
    if any(codes):
        kill = facts.waited or _lost(codes)
        return Decision(SessionState.FORMING, kill=kill, stacks=kill and _by_themselves(codes) and not _refused(facts))
    if codes:
        return Decision(SessionState.FINISHING)
    if not facts.begun.issuperset(facts.members):
        return Decision(SessionState.FORMING)
    if set(facts.listed) != set(facts.members):
        return Decision(SessionState.FORMING, interrupt=True)
    return Decision(SessionState.SETTLED)


def outcome_of(exits: Mapping[str, int], gave_up: Collection[str] = ()) -> SessionOutcome:
    """Return the outcome of a world whose processes ended by themselves with these codes, the earliest first.

    Whoever was killed by a signal (of the kernel, of Gloo's, with its worker) is lost, and the others have failed for
    its sake; so the next session begins at the newest checkpoint. Agents report ends in any order. Where one has
    failed and another aborts, the one that failed is not lost, unless it says that a peer was.
    """
    codes = tuple(exits.values())
    if _lost(codes):
        return SessionOutcome.LOST
    if _failed(exits, gave_up):
        return SessionOutcome.FAILED if codes[0] else SessionOutcome.EARLY_EXIT
    return SessionOutcome.LOST if any(codes) else SessionOutcome.SUCCEEDED


def to_blame(exits: Mapping[str, int], gave_up: Collection[str], outcome: SessionOutcome) -> frozenset[str]:
    """Those of a session's ranks that failed for no other's sake; who was killed is known, and not among them.

    Gloo and NCCL abort a process whose peer is gone, as others end with an error: after a loss that says nothing of it.
    Where a rank aborts and nobody was lost or failed, the first one did so by itself.
    """
    if outcome is SessionOutcome.REFUSED or _lost(tuple(exits.values())):
        return frozenset()
    aborted = [rank_id for rank_id, code in exits.items() if code == ABORTED]
    return _failed(exits, gave_up) or frozenset(aborted[:1])


def _failed(exits: Mapping[str, int], gave_up: Collection[str]) -> frozenset[str]:
    """Those that have failed for no aborted one's sake. Where one has ended with 0, they may have failed for that."""
    failed, codes = frozenset(rank_id for rank_id, code in exits.items() if code > 0), exits.values()
    return failed.difference(gave_up) if ABORTED in codes and 0 not in codes else failed


def _lost(codes: tuple[int, ...]) -> bool:
    """Whether somebody was killed; an abort may be for the sake of one of whom nothing was heard yet."""
    return any(code < 0 and code != ABORTED for code in codes)


def _by_themselves(codes: tuple[int, ...]) -> bool:
    """Whether nobody was killed from outside: they failed, or gave up peers."""
    return all(code >= 0 or code == ABORTED for code in codes)


def _refused(facts: Facts) -> bool:
    """Whether this size is what the script fails for, as far as can be told: it had worked with another one.

    Whoever is killed here, since it waits for one that has failed, says nothing against that.
    """
    codes = tuple(facts.exits.values())
    failed = bool(_failed(facts.exits, facts.gave_up)) and 0 not in codes and _by_themselves(codes)
    return facts.before > 0 and facts.soon and failed


def _next(facts: Facts) -> Decision:
    """All have ended as they were asked to, or their training was over by then."""
    if facts.finished.issuperset(facts.members):
        return Decision(SessionState.ENDED, SessionOutcome.SUCCEEDED)
    chosen = tuple(rank_id for rank_id in facts.listed if rank_id in facts.able)
    if len(chosen) < max(1, facts.minimum):
        return Decision(SessionState.ENDED, SessionOutcome.SHORT)
    return Decision(SessionState.FORMING, form=chosen)
