"""The decision, pure: what the launcher does about what it knows. No I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_runtime.engines.base import HOW_TO_JOIN, SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.deadlock import ask_again, decide_deadlock, waits_for_ended
from elastic_runtime.launcher.decision.difference import decide_difference
from elastic_runtime.launcher.decision.facts import (
    AskRanks,
    Clocks,
    CloseSession,
    Decision,
    DecisionSettings,
    Facts,
    Finish,
    GiveUpWorker,
    HoldSize,
    LeadershipState,
    ListRanks,
    OpenSession,
    ReformWorld,
    RefuseSize,
    ReleaseWorker,
    StepDown,
)
from elastic_runtime.launcher.decision.joined import joined_ranks, wanted_with_joined
from elastic_runtime.launcher.decision.leases import decide_leases
from elastic_runtime.launcher.decision.leaving import ranks_due, staying
from elastic_runtime.launcher.decision.pausing import pause, paused_phase
from elastic_runtime.launcher.decision.silence import confirmed, silent
from elastic_runtime.launcher.decision.standstill import decide_standstill
from elastic_runtime.run.spec import RecoveryMode
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import ENDING, LAST_WRITE, SAME_NOTICE

_Candidate = tuple[bool, int, str]
"""Whether it is about to go, its place in the order, its rank id."""
EARLY = "a rank ended while others were still training"
ALONE = "the script has ended with code 0 before its ranks had met"
MAX_NAMED = 3
"""Rank ids that a reason names."""


def decide(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision:
    """Decide what to do now.

    Args:
        facts: how things stand.
        clocks: since when, these facts included.
        settings: what was asked for.
        now: seconds of the same clock as all times.

    Returns:
        Actions in the order in which to carry them out; an end of the run or of the launcher is always the only one.
    """
    return (
        _lost(facts)
        or _session_over(facts)
        or _unwanted(facts, settings)
        or _silent(facts, clocks, settings, now)
        or _ended_early(facts, clocks, settings, now)
        or _taken(facts)
        or pause(facts, clocks, settings, now)
        or _limit_reached(facts, clocks, settings, now)
        or _ended_late(facts, clocks, settings, now)
        or _form(facts, clocks, settings, now)
    )


def minimum_ranks(facts: Facts, settings: DecisionSettings) -> int:
    """Fewest ranks that train: in fixed mode as many as wanted."""
    fixed = settings.recovery.mode is RecoveryMode.FIXED
    return (facts.wanted if fixed else settings.workers.minimum) * settings.workers.slots


def choose_ranks(facts: Facts, settings: DecisionSettings, now: float) -> tuple[str, ...]:
    """The ranks of the world to be, oldest first.

    Workers that train keep training before others join, so that a survivor holds the state. Workers with a notice train
    on as long as :func:`.staying` says, if nobody takes their place, and are taken out then, unless too few would
    remain: the best of them stay until they are replaced or gone. One also stays where nobody else holds the state; the
    world is then larger by it, until the newcomers have taken it over. All who hold it do where nobody else does and
    the hand-over for their notices is not durable yet.

    Where ranks are restarted for each world, nobody stays who has no more time than a checkpoint takes: if fewer than
    the minimum remain, all write one and end.

    Of the workers that the place has, as many train as are asked for; those that joined by hand train besides.
    """
    due, late = ranks_due(facts, settings, now), staying(facts, settings, now)
    listed, holders = (facts.session.listed, facts.session.holders or ()) if facts.session else ((), ())
    # One that holds the state may be listed no more, and those who were to take it over be lost before they had it.
    order = {rank_id: index for index, rank_id in enumerate(dict.fromkeys((*holders, *listed)))}
    candidates = [
        (worker.leaving, order.get(slot.rank_id, len(order) + index), slot.rank_id)
        for index, (worker, slot) in enumerate((worker, slot) for worker in facts.workers for slot in worker.slots)
        if worker.ready and (slot.usable_at <= now or slot.rank_id in order)
    ]
    slots, least, joined = settings.workers.slots, minimum_ranks(facts, settings), joined_ranks(facts)
    most = wanted_with_joined(facts, settings.workers) * slots
    present = [each for each in sorted(candidates) if not each[0]]
    own = [each for each in present if each[2] not in joined][: facts.wanted * slots]
    lasting = sorted([*own, *(each for each in present if each[2] in joined)])[:most]
    noticed = [each for each in sorted(candidates) if each[0] and each[2] in order and each[2] not in due]
    last = [each for each in noticed if each[2] in late][: most - len(lasting)]
    going = [each for each in noticed if each not in last]
    chosen = lasting + last
    chosen += going[: max(0, least - len(chosen))]
    # Listed is not enough: a newcomer is, before it has heard anything of the state.
    if set(holders).isdisjoint(rank_id for _, _, rank_id in lasting):
        keeping = [each for each in going if each[2] in holders and each not in chosen]
        if (
            facts.handover_open
        ):  # The rank that writes may be taken first: all that have the state stay, as far as there is room.
            room = settings.workers.maximum * settings.workers.slots - len(chosen)
            chosen, keeping = chosen + keeping[: max(0, room)], keeping[max(0, room) :]
        if set(holders).isdisjoint(rank_id for _, _, rank_id in chosen):
            chosen += keeping[:1]
    if facts.refused_sizes:
        chosen = _of_allowed_size(chosen, [each for each in going if each not in chosen], facts.refused_sizes)
    return tuple(rank_id for _, _, rank_id in sorted(chosen, key=lambda each: each[1]))


def _of_allowed_size(chosen: list[_Candidate], going: list[_Candidate], refused: frozenset[int]) -> list[_Candidate]:
    """As few more as needed of those that are about to go, else as many as can be of those that stay."""
    for more in range(len(going) + 1):
        if chosen and len(chosen) + more not in refused:
            return chosen + going[:more]
    return chosen[: max((size for size in range(len(chosen)) if size not in refused), default=0)]


def choose_keeper(ends: Mapping[str, float | None]) -> str | None:
    """Which of the ranks that wait for a world has to make the state that they hold durable; None: nobody has to.

    The one that is there longest, for nobody knows how long a write will take; of several the lowest rank.

    Args:
        ends: when each of them will be taken, by rank id, from the lowest rank on; None: it stays.
    """
    known = [end for end in ends.values() if end is not None]
    if not known or len(known) < len(ends):
        return None
    longest = max(known) - SAME_NOTICE
    return next(rank_id for rank_id, end in ends.items() if end is not None and end >= longest)


def _lost(facts: Facts) -> Decision | None:
    if facts.leadership is not LeadershipState.LOST:
        return None
    return Decision((StepDown(handover=False),), _short_phase(facts), "another launcher has taken over")


def _taken(facts: Facts) -> Decision | None:
    if facts.leadership is not LeadershipState.ENDING:
        return None
    session = facts.session
    held = session is not None and (
        session.state in (SessionState.SETTLED, SessionState.WAITING)
        or (session.state is SessionState.FORMING and session.stage is Stage.RETURNING and bool(session.holders))
    )
    return Decision((StepDown(handover=held),), _short_phase(facts), "the launcher is being taken, and replaced")


def _session_over(facts: Facts) -> Decision | None:
    if facts.session is None or facts.session.outcome is None:
        return None
    detail = facts.session.detail
    match facts.session.outcome:
        case SessionOutcome.SUCCEEDED:
            return Decision((Finish(Phase.SUCCEEDED),), Phase.SUCCEEDED, "all ranks ended with code 0")
        case SessionOutcome.EARLY_EXIT:
            return _failed(FailureKind.EARLY_EXIT, _early(facts, detail))
        case SessionOutcome.FAILED if facts.is_consequence and facts.ended is not None and not facts.ended.together:
            return _failed(FailureKind.EARLY_EXIT, _early(facts, detail))
        case SessionOutcome.FAILED if not facts.starved:
            return _failed(FailureKind.RANK_FAILED, f"the ranks failed: {detail}")
        case SessionOutcome.REFUSED:
            size, before = facts.session.size, facts.session.before
            refused = f"the script failed at once in a world of {size} ranks, not in one of {before}: {detail}"
            return Decision((RefuseSize(size, before), CloseSession()), _short_phase(facts), refused)
        case SessionOutcome.SHORT:
            return Decision((CloseSession(),), _short_phase(facts), f"the ranks ended as they were asked to: {detail}")
        case SessionOutcome.LOST | SessionOutcome.FAILED:
            return Decision((CloseSession(),), _short_phase(facts), f"the state was lost with its ranks: {detail}")


def _early(facts: Facts, detail: str) -> str:
    """Of a session that is over, for people."""
    if not facts.trained and facts.ended is None:
        return f"{ALONE}: {detail}. {HOW_TO_JOIN}"
    said = f"{_said(*facts.ended.ended[0])}; " if facts.ended is not None else ""
    return f"{EARLY}: {said}{detail}"


def _said(rank: int, step: int | None) -> str:
    return f"rank {rank} ended its training{'' if step is None else f' at step {step}'}"


def _ended_early(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision | None:
    """Ranks whose training functions have returned would be waited for by the others' collectives for ever."""
    if (ending := facts.ending) is None:
        return None
    waited = now - (now if clocks.ending_since is None else clocks.ending_since)
    if ending.together:
        return _none_ends(facts, waited, now)
    (rank, step), *others = ending.ended
    early = f"{EARLY}: {_said(rank, step)}"
    for other, at in others:
        if at != step:
            return _failed(FailureKind.EARLY_EXIT, f"{early}, and rank {other} at step {at}")
    if step is not None and ending.step is not None and ending.step > step:
        return _failed(FailureKind.EARLY_EXIT, f"{early}, and rank 0 has committed step {ending.step}")
    if facts.inquiry and (stuck := waits_for_ended(facts.inquiry, {rank for rank, _ in ending.ended})):
        return _failed(FailureKind.EARLY_EXIT, f"{early}, and rank {stuck.rank} waits for it at {stuck.place}")
    if waited > ENDING * settings.timing.forming:
        rest = " and ".join(map(str, ending.training))
        have = f"ranks {rest} have" if len(ending.training) > 1 else f"rank {rest} has"
        return _failed(FailureKind.EARLY_EXIT, f"{early}, and {have} not within {waited:.0f} s")
    return None


def _none_ends(facts: Facts, waited: float, now: float) -> Decision | None:
    """All ranks ended their training so many seconds ago, and work on."""
    quiet = min(waited, now - max(facts.commits.last, facts.excused)) if facts.commits else waited
    if quiet <= LAST_WRITE:  # It may train once more.
        return None
    return _failed(FailureKind.RANK_FAILED, f"no rank has ended {quiet:.0f} s after all had ended their training")


def _ended_late(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision | None:
    """Ranks that go on alone after another has ended with code 0: see :func:`.bound_of`."""
    if facts.session is None or facts.session.state is not SessionState.FINISHING:
        return None
    if facts.session.done:
        return _none_ends(facts, now - (now if clocks.done_since is None else clocks.done_since), now)
    waited, bound = min(_finishing(clocks, now), now - facts.excused), bound_of(facts.session, settings)
    if bound is None or waited <= bound.seconds:
        return None
    late = f"not all ranks have ended {waited:.0f} s after the first (recovery.max_wait)"
    if facts.ended is None or facts.ended.together:
        return _failed(FailureKind.RANK_FAILED, late)
    return _failed(FailureKind.EARLY_EXIT, _early(facts, late))


def _silent(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision | None:
    lost = confirmed(clocks, settings, now)
    if not lost:
        return None
    actions = tuple(
        GiveUpWorker(name, f"its agent has been silent for {now - facts.heard[name]:.1f} s, and no rank has committed")
        for name in lost
    )
    return Decision(actions, Phase.RUNNING, f"{named(lost)} {'is' if len(lost) == 1 else 'are'} silent")


def _unwanted(facts: Facts, settings: DecisionSettings) -> Decision | None:
    if facts.cancel is not None:
        return _failed(FailureKind.CANCELLED, f"cancelled: {facts.cancel}")
    if facts.over_budget is not None:
        return _failed(FailureKind.BUDGET, facts.over_budget)
    if facts.out_of_memory is not None:
        return _failed(FailureKind.OUT_OF_MEMORY, facts.out_of_memory)
    if not settings.timing.lease or facts.lease_age is None:
        return None
    if facts.lease_age > settings.timing.lease:
        return _failed(FailureKind.ABANDONED, f"the lease has not been renewed for {facts.lease_age:.0f} s")
    if not facts.watched and facts.lease_age > settings.timing.unwatched:
        waited = f"no task has watched the run for {facts.lease_age:.0f} s"
        return _failed(FailureKind.ABANDONED, f"{waited}: its task was ended, or no triggerer has room")
    return None


def _limit_reached(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision | None:
    recovery, least = settings.recovery, f"{minimum_ranks(facts, settings)} ranks"
    if facts.rank_failures > recovery.rank_failures:
        failures = f"{facts.rank_failures} ranks failed, {recovery.rank_failures} are allowed"
        return _failed(FailureKind.RANK_FAILED, failures)
    if recovery.reset_limit is not None and facts.forced_resets > recovery.reset_limit:
        resets = f"{facts.forced_resets} forced resets, {recovery.reset_limit} are allowed"
        return _failed(FailureKind.RESET_LIMIT, resets)
    if not facts.trained and now - clocks.launched > recovery.start_timeout:
        late = f"no world of {least} within {recovery.start_timeout:.0f} s"
        return _failed(FailureKind.START_TIMEOUT, _explained(late, facts))
    if clocks.short_since is not None and now - clocks.short_since > recovery.max_wait:
        short = f"fewer than {least} for {now - clocks.short_since:.0f} s"
        return _failed(FailureKind.MAX_WAIT_EXCEEDED, _explained(short, facts))
    return _refused(facts, clocks, settings, now)


def _refused(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision | None:
    """What has trained once waits for max_wait: it holds a state that is worth the time."""
    if facts.trained or facts.session or clocks.hopeless_since is None:
        return None
    if now - clocks.hopeless_since <= settings.refused_timeout:
        return None
    return _failed(FailureKind.POD_REFUSED, _explained("its workers cannot run", facts))


def _explained(reason: str, facts: Facts) -> str:
    return f"{reason}; {facts.refusal.words}" if facts.refusal else reason


def _failed(kind: FailureKind, reason: str) -> Decision:
    return Decision((Finish(Phase.FAILED, kind),), Phase.FAILED, reason)


def _short_phase(facts: Facts) -> Phase:
    """Of a run that waits for ranks."""
    if facts.pause is not None:
        return paused_phase(facts)
    return Phase.SUSPENDED if facts.trained else Phase.STARTING


def _form(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision:
    """Open a session, or change the one there is, and let go who is not needed."""
    wish = ListRanks(choose_ranks(facts, settings, now), minimum_ranks(facts, settings))
    released = tuple(
        ReleaseWorker(worker.name)
        for worker in facts.workers
        if worker.leaving and not worker.running and not {slot.rank_id for slot in worker.slots} & set(wish.ranks)
    )
    session = facts.session
    if session is None:
        then = _begin(facts, wish, clocks, settings, now)
    elif session.state is SessionState.WAITING:
        then = _fill(facts, session, wish)
    elif session.state is SessionState.FORMING:
        then = _see_it_formed(facts, session, clocks, settings, now)
    elif session.state is SessionState.FINISHING:
        then = _see_it_ended(session, clocks, settings, now)
    else:
        due = ranks_due(facts, settings, now) & set(session.listed)
        then = (
            decide_difference(facts, settings)
            or _hold(facts, session)
            or _change(session, wish, due)
            or decide_leases(facts, settings, now)
            or decide_standstill(facts, settings, now)
            or decide_deadlock(facts, settings, now)
            or _see_it_train(facts, session, clocks, settings, now)
        )
    return Decision((*released, *then.actions), then.phase, then.reason)


def _begin(facts: Facts, wish: ListRanks, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision:
    """With all who are wanted, or after a while with fewer."""
    here, wanted = len(wish.ranks), wanted_with_joined(facts, settings.workers) * settings.workers.slots
    waited = clocks.gathering_since is not None and now - clocks.gathering_since >= settings.timing.gather
    if here >= wish.minimum and (waited or here >= wanted):
        actions = (OpenSession(wish.ranks, wish.minimum),)
        return Decision(actions, _short_phase(facts), f"{here} ranks can start")
    short = f"{here} of {wanted} ranks can start{_except(facts)}"
    return Decision((), _short_phase(facts), _explained(short, facts))


def _except(facts: Facts) -> str:
    """For people: which sizes cannot be."""
    sizes = " and ".join(map(str, sorted(facts.refused_sizes)))
    return f"; the script cannot train with {sizes}" if sizes else ""


def _fill(facts: Facts, session: SessionFact, wish: ListRanks) -> Decision:
    """Ranks that wait, too few for a world: to list everybody who is here is all that can help."""
    if session.holders == ():
        return Decision((CloseSession(),), _short_phase(facts), "no rank with the state is left")
    changes = () if wish == ListRanks(session.listed, session.minimum) else (wish,)
    short = f"{len(wish.ranks)} ranks can train, the least is {wish.minimum}"
    return Decision(changes, _short_phase(facts), _explained(short, facts))


def _hold(facts: Facts, session: SessionFact) -> Decision | None:
    """Whether workers are asked for whose ranks could not join the world."""
    members = set(session.static)
    own = [worker for worker in facts.workers if not worker.joined]
    here = sum(1 for worker in own if members.intersection(slot.rank_id for slot in worker.slots))
    if not members or facts.wanted <= here:
        return None
    words = f"{len(members)} ranks train without an elastic state, so {facts.wanted} workers are too many"
    return Decision((HoldSize(here),), Phase.RUNNING, words)


def _change(session: SessionFact, wish: ListRanks, due: frozenset[str]) -> Decision | None:
    """Whether others shall train than do."""
    enough = len(wish.ranks) >= wish.minimum
    if set(wish.ranks) == set(session.listed) or not (enough or due):
        return None
    reason = f"{len(session.listed)} ranks are listed, {len(wish.ranks)} shall train"
    if not enough:
        reason = f"{named(sorted(due))} will be taken before others can take over: all write a checkpoint and end"
    return Decision((wish,), Phase.RUNNING, reason)


def _see_it_train(
    facts: Facts, session: SessionFact, clocks: Clocks, settings: DecisionSettings, now: float
) -> Decision:
    """A world that is complete goes on, unless ranks that were started for it do not get ready."""
    started = now - (now if clocks.starting_since is None else clocks.starting_since)
    if started > ready_bound(session, settings):
        late = f"{named(session.starting)} did not get ready for a world within {started:.0f} s of the start"
        return Decision((ReformWorld(),), Phase.RUNNING, late)
    if (ending := facts.ending) is None:
        return Decision((), Phase.RUNNING, f"{len(session.listed)} ranks train")
    have = f"{len(ending.ended)} ranks have ended their training, {len(ending.training)} have not"
    asks = ending.training and clocks.ending_since is not None and ask_again(facts.inquiry, clocks.ending_since, now)
    return Decision((AskRanks(have, quiet=True, early=True),) if asks else (), Phase.RUNNING, have)


def _see_it_ended(session: SessionFact, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision:
    """After a rank has ended with code 0, the others may go on alone for some time, to write a model."""
    waited, bound = _finishing(clocks, now), bound_of(session, settings)
    if bound is None or waited <= settings.timing.tick:
        return Decision((), Phase.RUNNING, "the ranks are ending")
    waits = f"the ranks are ending: the run fails unless all have ended after {bound.seconds:.0f} s"
    return Decision((), Phase.RUNNING, waits)


def _finishing(clocks: Clocks, now: float) -> float:
    """For how long, in seconds."""
    return now - (now if clocks.finishing_since is None else clocks.finishing_since)


def _see_it_formed(
    facts: Facts, session: SessionFact, clocks: Clocks, settings: DecisionSettings, now: float
) -> Decision:
    """A world that forms is left alone, unless nobody has the state, or it takes too long: see :func:`.bound_of`."""
    if session.holders == () and not session.unheard:
        ended = f"{session.detail}; " if session.detail else ""
        reason = f"{ended}a rank ended before the new world was complete, and no rank with the state is left"
        return Decision((CloseSession(),), _short_phase(facts), reason)
    phase = Phase.RUNNING if facts.trained else Phase.STARTING
    waited = now - (now if clocks.forming_since is None else clocks.forming_since)
    bound = bound_of(session, settings)
    if bound is None or waited <= bound.seconds:
        return Decision((), phase, standing(session, bound, waited, settings.timing.tick))
    late = too_late(session, bound, waited)
    if bound.closes:
        return Decision((CloseSession(),), _short_phase(facts), late)
    return Decision((ReformWorld(),), phase, late)


# For how long a world may form, or end, and what follows when it takes longer: a table, pure.


@dataclass(frozen=True, slots=True)
class Bound:
    """Limit of one stage of a session."""

    seconds: float
    """Since the stage has begun."""
    closes: bool
    """Consequence. True: the session is closed, or where its ranks are ending, the run fails. False: who has not come
    is stopped, and the others go on."""


def bound_of(session: SessionFact, settings: DecisionSettings) -> Bound | None:
    """Return the limit of a session that is FORMING or FINISHING. None: limits of the start or of agents apply.

    ====================  ==============================  ==========================  ==================================
    stage                 the state                       bound                       what follows
    ====================  ==============================  ==========================  ==================================
    leaving               --                              the agents' grace           --
    connecting            none yet: a first world         ``start_timeout``, or       the run fails
                                                          ``max_wait``
    any other             nobody holds it                 ``forming``                 the session is closed
    connecting            held                            ``forming``                 who is not there is stopped
    returning             held, by ranks that say that    none                        the session is closed
                          they cannot come back
    returning             held, and a rank is there       ``forming``                 who is not there is stopped
    returning             held, and no rank is there:     ``max_wait``                the session is closed
                          all may be at work, as in a
                          long evaluation
    any, after a stop     held                            ``forming`` once more       the session is closed
    finishing: a rank     any                             ``max_wait``                the run fails
    has ended with 0
    finishing: all have   any                             a day                       the run fails
    ended their training
    ====================  ==============================  ==========================  ==================================
    """
    forming = settings.timing.forming
    if session.state is SessionState.FINISHING:
        return Bound(LAST_WRITE if session.done else max(forming, settings.recovery.max_wait), closes=True)
    if session.stage is Stage.LEAVING:
        return None
    if not session.holders:
        is_first = session.stage is Stage.CONNECTING and session.world <= 1
        return None if is_first else Bound(forming, closes=True)
    if session.hung:
        return Bound(0.0, closes=True)
    if session.stage is Stage.RETURNING and session.awaited and not session.arrived:
        return Bound(max(forming, settings.recovery.max_wait), closes=True)
    return Bound(2 * forming, closes=True) if session.given_up else Bound(forming, closes=False)


def ready_bound(session: SessionFact, settings: DecisionSettings) -> float:
    """Return the seconds that ranks have from their start until they are ready for a world while others train."""
    recovery = settings.recovery
    return max(recovery.start_timeout, recovery.max_wait) if session.prepares else settings.timing.forming


def named(rank_ids: Sequence[str]) -> str:
    """Return the ranks' names for users."""
    names = list(rank_ids[:MAX_NAMED])
    if more := len(rank_ids) - len(names):
        names.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def standing(session: SessionFact, bound: Bound | None, waited: float, calm: float) -> str:
    """How a world forms, for people: once it takes longer than ``calm`` seconds, with whom it waits for."""
    is_over = session.stage is Stage.RETURNING
    what = "a world is over" if is_over else "a new world is forming"
    if bound is None or not session.awaited or waited <= calm:
        return what
    ends = f"{session.detail}; " if is_over and session.detail else ""
    who = named(session.awaited)
    where = "to come back" if session.stage is not Stage.CONNECTING else "to connect"
    then = "the session is closed" if bound.closes else "stopped"
    return f"{ends}{what}, and waits for {who} {where}: {then} after {bound.seconds:.0f} s"


def too_late(session: SessionFact, bound: Bound, waited: float) -> str:
    """Why the bound was reached, for people."""
    who = f": {named(session.awaited)} did not come" if session.awaited else ""
    if not bound.closes:
        return f"no new world within {waited:.0f} s{who}"
    ends = f"{session.detail}; " if session.detail else ""
    left = ", and its ranks do not come back" if session.holders else f"{who}, and no rank has a state to wait for"
    return f"{ends}no new world within {waited:.0f} s{left}"


# What the launcher remembers from one look at the facts to the next: since when what lasts has lasted.


def observe(clocks: Clocks, facts: Facts, settings: DecisionSettings, now: float) -> Clocks:
    """The clocks after this look.

    Args:
        clocks: after the look before.
        facts: how things stand.
        settings: what was asked for.
        now: seconds of the same clock as all times.
    """
    usable = sum(len(worker.slots) for worker in facts.workers if worker.ready and not worker.leaving)
    gathering = facts.session is None and usable >= minimum_ranks(facts, settings)
    session = facts.session
    world = session.world if session else 0
    stage = session.stage if session else Stage.CONNECTING
    same_world = clocks.forming_since if (world, stage) == (clocks.world, clocks.stage) else None
    is_finishing = session is not None and session.state is SessionState.FINISHING
    is_done = session is not None and is_finishing and session.done
    starting = session.starting[:1] if session else ()
    same_start = clocks.starting_since if starting == clocks.starting else None
    suspects = silent(facts, settings, now)
    same_suspects = clocks.silent_since if suspects == clocks.silent else None
    is_paused = facts.pause is not None and session is None
    return Clocks(
        launched=now if is_paused else clocks.launched,
        short_since=None if is_paused else _short_since(clocks, facts, now),
        gathering_since=_since(clocks.gathering_since, gathering, now),
        hopeless_since=_since(clocks.hopeless_since, facts.refusal is not None and facts.refusal.hopeless, now),
        forming_since=_since(same_world, session is not None and session.state is SessionState.FORMING, now),
        world=world,
        finishing_since=_since(clocks.finishing_since, is_finishing and not is_done, now),
        done_since=_since(clocks.done_since, is_done, now),
        ending_since=_since(clocks.ending_since, facts.ending is not None, now),
        starting_since=_since(same_start, bool(starting), now),
        starting=starting,
        stage=stage,
        silent_since=_since(same_suspects, bool(suspects), now),
        silent=suspects,
        pausing_since=_since(clocks.pausing_since, facts.pause is not None and not is_paused, now),
    )


def _since(before: float | None, lasts: bool, now: float) -> float | None:
    return (now if before is None else before) if lasts else None


def _short_since(clocks: Clocks, facts: Facts, now: float) -> float | None:
    if facts.session is not None and facts.session.state is SessionState.FORMING:
        return clocks.short_since  # Worlds that are lost again and again, before they are complete, make no progress.
    return _since(clocks.short_since, facts.trained and not facts.has_world, now)
