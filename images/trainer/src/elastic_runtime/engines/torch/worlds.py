"""When the ranks of a session form a world, and which of them: decided from what is known, without any I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_runtime.engines.base import SessionOutcome, SessionState
from elastic_runtime.engines.exits import outcome_of

TOGETHER = 5.0
"""Seconds between two starts that count as one."""


@dataclass(frozen=True, slots=True)
class RankFact:
    """A rank whose process runs, or is about to."""

    ready: bool = False
    """For a next world, and in none now."""
    connected: bool = False
    """To all others of the present world."""
    synced: bool = False
    """It has the state: that of the present world, or of one before."""
    done: bool = False
    """Its training in the present world is over."""
    hung: bool = False
    """It cannot leave the present world, which is broken."""
    part: bool = False
    """It is ready, with a part of the state that it has given to nobody."""
    started: float = 0.0
    """When its process was started, in seconds of the event loop's clock."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a session knows."""

    listed: tuple[str, ...]
    """Rank ids that may be used, in the order in which newcomers are numbered."""
    minimum: int
    """Fewest ranks of a world."""
    running: Mapping[str, RankFact]
    members: tuple[str, ...] = ()
    """Members of the present world, by rank. Empty before the first."""
    exits: Mapping[str, int] = field(default_factory=dict)
    """Codes of its members that have ended; before the first world, of all."""
    broken: bool = False
    """The present world is, though none of its members may have ended."""
    had_state: bool = False
    """Some rank of some world had it."""
    state_lost: bool = False
    """The members of the present world do not have all of it."""
    finished: bool = False
    """All members of the present world were done."""
    hurries: bool = False
    """Members that are to leave wait no longer for newcomers to be ready."""
    may_be_alone: bool = False
    """A script that meets nobody may succeed; and a rank that has ended with 0 says nothing about the others' world."""

    @property
    def here(self) -> dict[str, RankFact]:
        """Members of the present world that run."""
        return {rank_id: self.running[rank_id] for rank_id in self.members if rank_id in self.running}

    @property
    def holders(self) -> tuple[str, ...]:
        """Members that run and have the state, by rank."""
        return tuple(rank_id for rank_id, rank in self.here.items() if rank.synced)

    @property
    def unheard(self) -> tuple[str, ...]:
        """Members that may have the state though they have not told: each does before it tells that it is ready."""
        return tuple(each for each, rank in self.here.items() if not (rank.synced or rank.ready or rank.hung))

    @property
    def all_hung(self) -> bool:
        """All who have the state are: to stop them is to lose it."""
        return bool(self.holders) and all(self.running[rank_id].hung for rank_id in self.holders)


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision about worlds, and the messages that follow."""

    state: SessionState
    outcome: SessionOutcome | None = None
    """Where the session has ended."""
    form: tuple[str, ...] = ()
    """Rank ids of a next world, by rank, to be formed now."""
    alike: int = 0
    """The first so many of these have left the present world at the same commit."""
    is_broken: bool = False
    """Members of the present world that are not ready for another are to hear that it is broken."""
    wants_another: bool = False
    """They are to leave it at their next commit."""
    leaving: tuple[int, ...] = ()
    """Ranks of theirs that will not be in the next."""
    stop: tuple[str, ...] = ()
    """Rank ids of members that hang, where others have the state."""
    left_out: tuple[str, ...] = ()
    """Rank ids that are ready for a world, and will be in none."""
    all_done: bool = False
    """All members are to hear that."""


def decide(facts: Facts) -> Decision:
    """Return which ranks form the next world, or how the session ends."""
    here, codes = facts.here, facts.exits.values()
    if not facts.members:
        return _before_the_first(facts)
    if facts.state_lost or not here:
        ended = outcome_of(codes) if any(codes) else SessionOutcome.SUCCEEDED
        return _over(SessionOutcome.LOST if facts.state_lost else ended)
    whole = len(here) == len(facts.members) and not facts.broken
    if facts.finished or (whole and all(rank.done for rank in here.values())):
        return Decision(SessionState.FINISHING, left_out=_left_out(facts), all_done=True)
    if 0 in codes:
        # Its own training was over, and that of the others is not: they cannot go on without it.
        waits = any(rank.ready for rank in here.values())
        broken = not facts.may_be_alone
        return _over(SessionOutcome.EARLY_EXIT) if waits else Decision(SessionState.FINISHING, is_broken=broken)
    if all(rank.ready for rank in here.values()):
        return _next(facts)
    if not whole or not all(rank.connected for rank in here.values()):
        hung = () if facts.all_hung else tuple(rank_id for rank_id, rank in here.items() if rank.hung)
        return Decision(SessionState.FORMING, is_broken=not whole, stop=hung, left_out=_left_out(facts))
    if not _wants_another(facts):
        return Decision(SessionState.SETTLED, left_out=_left_out(facts))
    chosen = _chosen(facts)
    leaving = tuple(rank for rank, rank_id in enumerate(facts.members) if rank_id not in chosen)
    return Decision(SessionState.SETTLED, wants_another=True, leaving=leaving, left_out=_left_out(facts))


def is_done(facts: Facts) -> bool:
    """Whether no rank has ended with 0 since all were done, nor wants another world, as one that trains once more."""
    wants_another = facts.broken or any(rank.ready for rank in facts.here.values())
    return facts.finished and 0 not in facts.exits.values() and not wants_another


def late(facts: Facts, *, told_broken: bool) -> tuple[str, ...]:
    """Members, or newcomers, that the others have waited for too long, by rank: they are to be stopped.

    Args:
        facts: of a world that is not complete.
        told_broken: its members know that it is broken, so that all are to be ready for another; else it is
            connecting, and those that are connected wait for the others.
    """
    missing = absent(facts, told_broken=told_broken)
    if facts.here and all(rank.ready for rank in facts.here.values()):
        return starting(facts)
    waits = set(facts.here).difference(missing)
    spared = () if waits.intersection(facts.holders) else facts.holders  # With them the state would go.
    return tuple(rank_id for rank_id in missing if rank_id not in spared)


def absent(facts: Facts, *, told_broken: bool) -> tuple[str, ...]:
    """Members of a world that is not complete which have not come to it, or back from it, by rank; see :func:`late`."""
    here = facts.here.items()
    return tuple(rank_id for rank_id, rank in here if not rank.ready and (told_broken or not rank.connected))


def _before_the_first(facts: Facts) -> Decision:
    codes = facts.exits.values()
    if codes and facts.may_be_alone and not any(codes):
        waits = any(rank.ready for rank in facts.running.values())
        if not facts.running or waits:
            return _over(SessionOutcome.EARLY_EXIT if waits else SessionOutcome.SUCCEEDED)
        return Decision(SessionState.FORMING)
    if codes:
        return _over(outcome_of(codes) if all(codes) else SessionOutcome.EARLY_EXIT)
    chosen = _chosen(facts)
    form = chosen if len(chosen) >= max(facts.minimum, len(facts.listed)) else ()
    return Decision(SessionState.FORMING, form=form, left_out=_left_out(facts))


def _next(facts: Facts) -> Decision:
    """All that are left of the present world are ready for another."""
    chosen = _chosen(facts)
    if facts.had_state and not facts.holders:
        return _over(SessionOutcome.LOST)
    # Who has the state may be listed no more, and those that were to take it over be lost: it is listed again at once.
    stateless = facts.had_state and set(facts.holders).isdisjoint(chosen)
    if stateless or len(chosen) < facts.minimum:
        enough = not stateless and len({*chosen, *starting(facts)}) >= facts.minimum
        state = SessionState.FORMING if enough else SessionState.WAITING
        return Decision(state, left_out=_left_out(facts))
    # Whoever has not left at the commit that all agreed on is gone, or has said that the world is broken.
    at_one_commit = not facts.broken and len(facts.here) == len(facts.members)
    alike = len(set(chosen).intersection(facts.holders)) if at_one_commit else 0  # They are the first of the order.
    return Decision(SessionState.FORMING, form=chosen, alike=alike, left_out=_left_out(facts))


def _chosen(facts: Facts) -> tuple[str, ...]:
    """Those who have the state first, in the order that they had; at the end who comes."""
    able = {each for each in facts.listed if each in facts.running}
    able = {each for each in able if each in facts.members or facts.running[each].ready}
    able |= {each for each, rank in facts.here.items() if rank.part}
    order = [each for each in dict.fromkeys((*facts.holders, *facts.members, *facts.listed)) if each in able]
    return tuple(order)


def _wants_another(facts: Facts) -> bool:
    chosen = _chosen(facts)
    # In whatever order: at first that is by who has said already that it has the state.
    others = set(chosen) != set(facts.members)
    if not facts.hurries and starting(facts):
        return False  # Or there would be a world without those that come together, or of those that stay, for a moment.
    return others and len(chosen) >= facts.minimum and not set(facts.holders).isdisjoint(chosen)


def starting(facts: Facts) -> tuple[str, ...]:
    """Newcomers that are listed and have been started, and are not ready yet."""
    members = frozenset(facts.members)
    newcomers = (each for each in facts.listed if each in facts.running and each not in members)
    return tuple(each for each in newcomers if not facts.running[each].ready)


def overdue(facts: Facts) -> tuple[str, ...]:
    """Newcomers that the members have trained without for too long: the first, and those that started with it."""
    found = starting(facts)
    first = min((facts.running[each].started for each in found), default=0.0)
    return tuple(each for each in found if facts.running[each].started <= first + TOGETHER)


def _left_out(facts: Facts) -> tuple[str, ...]:
    known = {*facts.listed, *facts.members}
    return tuple(rank_id for rank_id, rank in facts.running.items() if rank.ready and rank_id not in known)


def _over(outcome: SessionOutcome) -> Decision:
    return Decision(SessionState.ENDED, outcome)
