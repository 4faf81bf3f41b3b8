"""Whether ranks wait for each other for good, so that nobody need wait to know it; pure.

A rank that waits in a commit has begun fewer collectives than another, which waits in one of those it has not begun.
That rank cannot begin it before its commit is over, and its commit is not over before the other has begun it, too. The
same holds for a rank that has ended its training, and where all are blocked, and have begun different numbers. So ranks
are asked twice, quietly, long before a standstill is told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from elastic_runtime.launcher.decision.facts import AskRanks, Decision, DecisionSettings, Facts, Inquiry, RankStanding
from elastic_runtime.launcher.decision.standstill import end, follow_up, judge, limit_of
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import DEADLOCK, DEADLOCK_AGAIN

HINT = "All ranks must call the same collectives, and commit at the same steps"


def decide_deadlock(facts: Facts, settings: DecisionSettings, now: float) -> Decision | None:
    """Return what follows from a deadlock, or from the time without a commit. None: nothing.

    Args:
        facts: how things stand.
        settings: what was asked for.
        now: seconds of the same clock as all times.
    """
    session, commits, inquiry, limit = facts.session, facts.commits, facts.inquiry, limit_of(facts, settings)
    if session is None or commits is None or limit is None or facts.ended is not None:
        return None
    since = max(commits.last, facts.excused)
    waited, patience = now - since, max(DEADLOCK, 0.0 if commits.longest is None else commits.usual)
    if not patience < waited <= limit:
        return None
    ask = Decision((AskRanks("", quiet=True, early=True),), Phase.RUNNING, f"{len(session.listed)} ranks train")
    if inquiry is None or inquiry.asked < since:
        return ask
    asked, stands = now - inquiry.asked, f"no rank has committed for {waited:.0f} s, and ranks wait for each other"
    if not inquiry.early:
        return None  # A standstill is being judged.
    if inquiry.acted is not None:
        return follow_up(facts, inquiry, inquiry.acted, stands, settings, now)
    if is_deadlock(inquiry.ranks) and inquiry.repeated:
        return end(facts, inquiry, judge(inquiry.ranks), stands, HINT)
    return ask if asked > (DEADLOCK_AGAIN if is_deadlock(inquiry.ranks) else patience) else None


def is_deadlock(ranks: Sequence[RankStanding]) -> bool:
    """Whether ranks wait in a commit and in a collective before it, or all in different collectives.

    Args:
        ranks: of the world, as they have answered.
    """
    if all(each.blocked and not each.in_commit for each in ranks):
        return all(each.collectives is not None for each in ranks) and len({_begun(each) for each in ranks}) > 1
    return any(_commits_ahead(rank, other) and _is_behind(rank, other) for rank in ranks for other in ranks)


def waits_for_ended(inquiry: Inquiry, ended: Collection[int]) -> RankStanding | None:
    """Return a rank that waits in a collective or commit that a rank, which has ended its training, will not begin.

    Args:
        inquiry: of the world.
        ended: numbers of the ranks whose training has ended.
    """
    over = [each for each in inquiry.ranks if each.rank in ended]
    training = [each for each in inquiry.ranks if each.rank not in ended]
    found = (
        each
        for each in training
        if any(_is_behind(rank, each) or (rank.answered and _commits_ahead(each, rank)) for rank in over)
    )
    return next(found, None) if inquiry.repeated else None


def _commits_ahead(rank: RankStanding, other: RankStanding) -> bool:
    """Whether a rank waits in a commit that another one has not begun. Commits of Horovod are collectives, too."""
    return rank.waits and rank.in_commit and rank.commits > other.commits


def _is_behind(rank: RankStanding, other: RankStanding) -> bool:
    """Whether another rank waits, and has begun more collectives than this one."""
    if rank.collectives is None or other.collectives is None:
        return False
    more = other.collectives > rank.collectives or other.beside > rank.beside
    return other.waits and not other.in_commit and more


def _begun(rank: RankStanding) -> tuple[int | None, int]:
    return rank.collectives, rank.beside


def ask_again(inquiry: Inquiry | None, since: float, now: float) -> bool:
    """Whether the ranks are to be asked, of whom some have ended their training since then."""
    return now - since > DEADLOCK_AGAIN and (
        inquiry is None or inquiry.asked < since or now - inquiry.asked > DEADLOCK_AGAIN
    )
