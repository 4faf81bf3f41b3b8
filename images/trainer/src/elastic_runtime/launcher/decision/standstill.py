"""Whether a world stands still though all its ranks live, and by whose fault; pure.

A rank that skips a collective, sleeps, or hangs in its own code keeps the others waiting, and closes no connection. So
a world whose ranks have a state and do not commit for too long is asked where its ranks stand. Who differs from the
others is at fault, is named and stopped; the others go on from the last commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_runtime.engines.base import SessionState
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import (
    AskRanks,
    Decision,
    DecisionSettings,
    EndStandstill,
    Facts,
    Finish,
    GiveUpWorker,
    Inquiry,
    RankStanding,
    Stall,
)
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import (
    ANSWER,
    AT_WORK,
    FIRST_COMMIT,
    LAST_WRITE,
    LEAST_STANDSTILL,
    LONGEST_BUSY,
    STANDSTILL_INTERVALS,
)

MOST_NAMED = 4
"""Ranks that a message names."""
HINT = "If it evaluates, loads or compiles, put that under elastic_runtime.busy()"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is at fault."""

    ranks: tuple[RankStanding, ...]
    """Never all of them. Empty: nobody, as far as can be known."""
    why: str
    """For people, with the ranks' names."""
    at_work: bool = False
    """No rank waits for another."""


def limit_of(facts: Facts, settings: DecisionSettings) -> float | None:
    """Seconds without a commit after which the present world stands still. None: it is not judged.

    Judged is a complete world whose ranks have a state, which they can go on from, or are about to have one. Ranks that
    are started again at the script's own checkpoint are judged once they have reported two steps, each of which counts
    as a commit. Ranks that are about to end have limits of their own, and so have those that will all be taken.
    """
    session, commits, asked = facts.session, facts.commits, settings.recovery.standstill
    if session is None or session.state is not SessionState.SETTLED or commits is None:
        return None
    if session.restarts and commits.longest is None:
        return None
    if not session.restarts and (session.holders == () or (session.holders is None and commits.begun)):
        return None
    if facts.ending is not None or asked == 0:
        return None
    have_state = set(session.holders or session.listed)  # New ranks may be listed for the next world.
    homes = [each for each in facts.workers if have_state.intersection(slot.rank_id for slot in each.slots)]
    if homes and all(each.leaving for each in homes):
        return None  # They may wait at their last commit for others that take over.
    limit = max(LEAST_STANDSTILL, STANDSTILL_INTERVALS * (commits.longest or 0.0)) if asked is None else asked
    if facts.ended is not None:  # It may write its last checkpoint.
        return max(limit, LAST_WRITE)
    return limit if commits.begun and commits.longest is not None else FIRST_COMMIT * limit


def decide_standstill(facts: Facts, settings: DecisionSettings, now: float) -> Decision | None:
    """Return what follows from a standstill. None: there is none.

    Args:
        facts: how things stand.
        settings: what was asked for.
        now: seconds of the same clock as all times.
    """
    limit = limit_of(facts, settings)
    if limit is None or facts.commits is None or now - (since := max(facts.commits.last, facts.excused)) <= limit:
        return None
    stands = _without_commit(facts, limit)
    inquiry = facts.inquiry
    # The newest commit may have been told when they were asked.
    if inquiry is None or inquiry.early or inquiry.asked < since + limit / 2:
        return _ask_quietly(facts, stands) if facts.commits.longest is None else _ask(stands)
    if inquiry.acted is not None:
        return follow_up(facts, inquiry, inquiry.acted, stands, settings, now)
    if now - inquiry.asked <= ANSWER and not all(each.known for each in inquiry.ranks):
        return None if inquiry.quiet else Decision((), Phase.RUNNING, f"{stands}: the ranks are asked where they stand")
    return _judged(facts, inquiry, limit, now - since, now)


def _judged(facts: Facts, inquiry: Inquiry, limit: float, quiet: float, now: float) -> Decision | None:
    """What follows from the answers, after so many seconds without a commit."""
    verdict, stands = judge(inquiry.ranks), _without_commit(facts, limit)
    if facts.commits is None or facts.commits.longest is None:
        # Nobody knows how long a step of this script takes: what proves a standstill is a rank that has not moved.
        overdue = facts.session is not None and bool(facts.session.holders) and quiet > LONGEST_BUSY
        if not overdue and (verdict.at_work or not inquiry.proves):
            return _ask_quietly(facts, stands) if now - inquiry.asked > limit / FIRST_COMMIT else None
        return _ask(stands) if inquiry.quiet else end(facts, inquiry, verdict, stands)
    if verdict.at_work:
        patience = AT_WORK * limit
        if quiet <= patience:
            then = f"unless one commits, they form a new world after {patience:.0f} s. {HINT}"
            return Decision((), Phase.RUNNING, f"{stands}: {verdict.why}; {then}")
        if inquiry.asked <= now - quiet + patience:
            return _ask(_without_commit(facts, patience))
    return end(facts, inquiry, verdict, stands)


def _without_commit(facts: Facts, seconds: float) -> str:
    lacks = "reported a step" if facts.session and facts.session.restarts else "committed"
    return f"no rank has {lacks} for more than {seconds:.0f} s"


def _ask(stands: str) -> Decision:
    reason = f"{stands}: the ranks are asked where they stand"
    return Decision((AskRanks(reason),), Phase.RUNNING, reason)


def _ask_quietly(facts: Facts, stands: str) -> Decision:
    trains = f"{len(facts.session.listed) if facts.session else 0} ranks train"
    return Decision((AskRanks(stands, quiet=True),), Phase.RUNNING, trains)


def end(facts: Facts, inquiry: Inquiry, verdict: Verdict, stands: str, hint: str = HINT) -> Decision:
    """Return what follows for the ranks at fault, or for all; the second time the end of the run.

    Args:
        facts: how things stand.
        inquiry: the newest.
        verdict: on its ranks.
        stands: what has shown the standstill, for people.
        hint: what to do about it.
    """
    ranks, told = verdict.ranks, facts.commits.told if facts.commits else 0
    stall = Stall(inquiry.step, tuple(each.rank for each in ranks), tuple(each.slot for each in ranks), told)
    at = "" if stall.step is None else f" at step {stall.step}"
    if any(stall.repeats(each) for each in facts.stalls):
        remedy = f". {hint}" if all(each.answered for each in ranks) else ""
        reason = f"the training stands still{at} for the second time: {verdict.why}{remedy}"
        return Decision((Finish(Phase.FAILED, FailureKind.STANDSTILL),), Phase.FAILED, reason)
    restarts = facts.session is not None and facts.session.restarts
    then = "all ranks start again" if restarts else consequence(ranks)
    reason = f"{stands}{at}: {verdict.why}; {then}"
    action = EndStandstill(stall, tuple(each.rank_id for each in ranks), reason)
    return Decision((action,), Phase.RUNNING, reason)


def follow_up(
    facts: Facts, inquiry: Inquiry, acted: float, stands: str, settings: DecisionSettings, now: float
) -> Decision:
    """Return what follows then: a process that no signal ends holds its world up, until its worker goes."""
    verdict = judge(inquiry.ranks)
    reason = f"{stands}: {verdict.why}"
    if now - acted <= settings.timing.stop_grace + settings.timing.forming:
        return Decision((), Phase.RUNNING, reason)
    held = {each.worker for each in verdict.ranks}
    lost = [each.name for each in facts.workers if each.name in held]
    actions = tuple(GiveUpWorker(name, "its rank stands still, and does not end") for name in lost)
    return Decision(actions, Phase.RUNNING, reason)


# Whose fault it is.


def judge(ranks: Sequence[RankStanding]) -> Verdict:
    """Find the ranks at fault, by the first of these in which some differ from the others.

    1. The process is stopped.
    2. The process does not answer.
    3. The rank is in code of the script while others wait in a collective, and has begun no more collectives than they.
    4. Most ranks have begun the same number of commits, or of collectives: a rank has begun another.
    5. All wait, and most at the same line of the script: a rank waits at another, in another collective.

    Only collectives of all ranks are counted: a script may use smaller groups unequally.

    Args:
        ranks: of the world, all of those that were asked.
    """
    stopped = [each for each in ranks if each.stopped]
    if _some(stopped, ranks):
        return _at_fault(stopped, lambda _: "its process is stopped")
    mute = [each for each in ranks if not each.answered]
    if _some(mute, ranks):
        return _at_fault(mute, lambda _: "its process does not answer")
    if mute or stopped:
        return Verdict((), f"{'all processes are stopped' if stopped else 'no rank answers'}")
    waiting = [each for each in ranks if each.waits]
    working = [each for each in ranks if not each.waits and not _has_begun_more(each, waiting)]
    if _some(working, ranks) and waiting:
        return _at_fault(working, lambda each: f"{_stands(each)}, while others wait in a collective")
    counted = _by_count(ranks, "commits", lambda each: each.commits)
    counted = counted or _by_count(ranks, "collectives", lambda each: each.collectives)
    counted = counted or _by_count(ranks, "collectives in groups of its own making", lambda each: each.beside)
    if counted:
        return counted
    if not waiting:
        return Verdict((), f"no rank waits for another: {_all_of(ranks)}", at_work=True)
    usual = most([each.place for each in ranks if each.place], len(ranks))
    elsewhere = [each for each in ranks if each.place != usual]
    if usual and elsewhere:
        return _at_fault(elsewhere, lambda each: f"{_stands(each)}, and the others at {usual}")
    return Verdict((), f"each rank waits for the others: {_all_of(ranks)}")


def _some(found: Sequence[RankStanding], ranks: Sequence[RankStanding]) -> bool:
    return 0 < len(found) < len(ranks)


def _has_begun_more(rank: RankStanding, waiting: Sequence[RankStanding]) -> bool:
    """Than one that waits, so that it is not this rank that is waited for: its collective may run on a GPU."""
    known = [each.collectives + each.beside for each in waiting if each.collectives is not None]
    return rank.collectives is not None and bool(known) and rank.collectives + rank.beside > min(known)


def _by_count(ranks: Sequence[RankStanding], what: str, count: Callable[[RankStanding], int | None]) -> Verdict | None:
    counts = [count(each) for each in ranks]
    usual = most([each for each in counts if each is not None], len(ranks))
    if usual is None or None in counts:
        return None
    others = [each for each in ranks if count(each) != usual]
    if not others:
        return None
    return _at_fault(others, lambda each: f"it has begun {count(each)} {what} in this world, the others {usual}")


def most(values: Sequence[object], of: int) -> object:
    """Return the value that more than half have; None: there is none."""
    (value, times), *_ = Counter(values).most_common(1) or [(None, 0)]
    return value if 2 * times > of else None


def _at_fault(ranks: Sequence[RankStanding], why: Callable[[RankStanding], str]) -> Verdict:
    told = [f"rank {each.rank} ({each.rank_id}): {why(each)}" for each in ranks]
    return Verdict(tuple(ranks), listed(told))


def _all_of(ranks: Sequence[RankStanding]) -> str:
    return listed([f"rank {each.rank} {_stands(each)}" for each in ranks])


def _stands(rank: RankStanding) -> str:
    return f"stands at {rank.place}" if rank.place else "stands at an unknown line"


def consequence(ranks: Sequence[object]) -> str:
    """Return what happens to the ranks at fault, for people."""
    return "all form a new world" if not ranks else "it is replaced" if len(ranks) == 1 else "they are replaced"


def listed(texts: Sequence[str]) -> str:
    """Return them with commas, :data:`MOST_NAMED` at most."""
    more = len(texts) - MOST_NAMED
    return ", ".join([*texts[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])])
