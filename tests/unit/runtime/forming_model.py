"""A model of a run as far as its worlds go: three workers, the launcher's real decision, and the session's real rules.

``observe`` and ``decide`` are the launcher's own, and so is ``worlds.decide`` of each engine's session. What a session
does with its answer (compare :mod:`elastic_runtime.engines.torch.session` and that of torchrun), and what workers and
ranks do, is restated here, each rule in a line or two. A state is a value, with times relative to now, so that states
can be compared; a step is a name, the state that follows, and the seconds until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

from elastic_runtime.engines.base import SessionOutcome
from elastic_runtime.engines.torch import worlds
from elastic_runtime.engines.torchrun import worlds as restarts
from elastic_runtime.launcher.decision.decide import decide, observe
from elastic_runtime.launcher.decision.facts import (
    Action,
    AskRanks,
    CloseSession,
    CommitFact,
    EndStandstill,
    Facts,
    Finish,
    GiveUpWorker,
    Inquiry,
    ListRanks,
    OpenSession,
    RankStanding,
    ReformWorld,
    ReleaseWorker,
    SlotFact,
    WorkerFact,
)
from tests.unit.runtime.forming_state import (
    BACKOFF,
    COLLECTIVE,
    ENDED,
    FORMING,
    MAX_WAIT,
    SETTLED,
    SILENCE,
    START_TIMEOUT,
    WORKERS,
    Engine,
    Hang,
    Phase,
    Rank,
    Session,
    State,
    Worker,
    place_of,
)

KILLED, FAILED = -9, 1
Step = tuple[str, State, float]
LONGEST = 200
"""Seconds for which nothing may happen."""


def decided(state: State) -> State:
    """One round of its loop."""
    session = state.session
    running = {rank.place for rank in session.ranks.values()} if session else set()
    facts = Facts(
        wanted=state.wanted,
        workers=tuple(
            WorkerFact(
                each.name, each.ready, (SlotFact(each.rank_id, each.usable_at),), each.leaving, each.index in running
            )
            for each in sorted(state.workers, key=lambda worker: worker.life)
            if each.here
        ),
        session=session.fact if session else None,
        trained=state.trained,
        heard={each.name: -(each.silent_for or 0.0) for each in state.workers if each.here},
        commits=CommitFact(-state.quiet, 1.0 if state.commits > 1 else None, state.begun) if session else None,
        inquiry=state.inquiry,
        stalls=state.stalls,
    )
    clocks = observe(state.clocks, facts, state.settings, 0.0)
    state = replace(state, clocks=clocks)
    decision = decide(facts, clocks, state.settings, 0.0)
    for action in decision.actions:
        state = _carry_out(state, action, decision.reason)
    return _normal(state)


def _carry_out(state: State, action: Action, reason: str) -> State:
    session = state.session
    match action:
        case OpenSession(ranks, minimum):
            opened = Session(FORMING, (), minimum, elastic=state.elastic, engine=state.engine)
            return _listed(replace(state, session=opened), opened, ranks, minimum)
        case ListRanks(ranks, minimum) if session:
            return _listed(state, session, ranks, minimum)
        case ReformWorld() if session:
            return _reformed(state, session)
        case CloseSession():
            return _end(state, reason)
        case ReleaseWorker(name) | GiveUpWorker(name):
            return _gone(state, next(each.index for each in state.workers if each.name == name))
        case AskRanks(_, quiet, early) if session:
            return state if early else replace(state, inquiry=_asked(state, session, quiet=quiet))
        case EndStandstill(stall, rank_ids) if session and state.inquiry:
            state = replace(state, stalls=(stall,), inquiry=replace(state.inquiry, acted=0.0))
            for rank_id in rank_ids:
                state = _stopped(state, rank_id)
            return state if rank_ids else _considered(state, replace(session, broken=True))
        case Finish():
            return replace(state, ended=reason)
        case _:
            raise AssertionError(action)


def _asked(state: State, session: Session, *, quiet: bool) -> Inquiry:
    """What the ranks say, some of which cannot."""
    ranks = []
    for number, rank_id in enumerate(session.members):
        rank = session.ranks[rank_id]
        known = RankStanding(number, rank_id, state.workers[rank.place].name, f"slot-{rank.place}")
        if rank.hang is Hang.STOPPED:
            known = replace(known, stopped=True)
        elif rank.hang is not Hang.SILENT:
            works, counts = rank.hang is Hang.ASLEEP, session.engine is Engine.TORCH
            known = replace(known, answered=True, collectives=1 if counts else None, waits=not works)
        ranks.append(known)
    before = state.inquiry.ranks if state.inquiry else ()
    still = (each for each in ranks if each in before)
    proves = any(each.stopped or not each.answered or (each.waits and each.collectives is not None) for each in still)
    return Inquiry(0.0, tuple(ranks), quiet=quiet, proves=proves)


def _end(state: State, reason: str) -> State:
    """No session any more, and no rank. Worth a remark when one of them had the state, and could have handed it on."""
    session = state.session
    assert session is not None
    ranks = session.ranks.items()
    holders = [each for each, rank in ranks if rank.synced and rank.phase is not Phase.OUT and not rank.hang]
    lost = state.lost or (f"{reason}: {holders}" if holders and state.elastic else "")
    workers = tuple(
        replace(each, incarnation=each.incarnation + 1) if each.rank_id in session.ranks else each
        for each in state.workers
    )
    return replace(state, session=None, workers=workers, lost=lost, inquiry=None)


# What the session does.


def _listed(state: State, session: Session, ranks: tuple[str, ...], minimum: int) -> State:
    running = dict(session.ranks)
    for rank_id in ranks:
        place = place_of(state, rank_id)
        if rank_id not in running and place is not None:
            silent = state.workers[place].silent_for is not None
            running[rank_id] = Rank(Phase.START, place, hang=Hang.SILENT if silent else None)
    return _considered(state, replace(session, listed=ranks, minimum=minimum, ranks=running))


def _considered(state: State, session: Session) -> State:
    """As ``_consider``: after whatever has happened."""
    if session.state is ENDED:
        return replace(state, session=session)
    if session.engine is Engine.TORCHRUN:
        return _restarted(state, session)
    decision = worlds.decide(session.facts)
    if session.state is not SETTLED and decision.state is SETTLED:
        state = replace(state, trained=True, quiet=0.0, begun=False, inquiry=None)
    session = replace(session, state=decision.state)
    if decision.outcome is not None:
        return _over_by_itself(state, session, decision.outcome)
    for rank_id in decision.left_out:
        session = session.with_rank(rank_id, replace(session.ranks[rank_id], phase=Phase.OUT))
    told_broken, leaves = session.told_broken or decision.is_broken, session.leaves or decision.wants_another
    session = replace(session, told_broken=told_broken, leaves=leaves)
    if not decision.form:
        return replace(state, session=session)
    ranks = dict(session.ranks)
    for rank_id in decision.form:
        ranks[rank_id] = replace(ranks[rank_id], phase=Phase.CONNECT)
    lost = state.lost
    if session.had_state and not ranks[decision.form[0]].synced:
        lost = lost or f"rank 0 has no state: {decision.form}"
    formed = replace(
        Session(FORMING, session.listed, session.minimum, ranks, decision.form),
        had_state=session.had_state,
        elastic=session.elastic,
        world=session.world + 1,
        engine=session.engine,
    )
    return _considered(replace(state, lost=lost), formed)


def _over_by_itself(state: State, session: Session, outcome: SessionOutcome) -> State:
    ended = _end(replace(state, session=session), f"the session: {outcome}")
    return replace(ended, session=replace(session, ranks={}, outcome=outcome, state=ENDED))


def _restarted(state: State, session: Session) -> State:
    """The same where each world has fresh processes."""
    decision = restarts.decide(session.restart_facts)
    session = replace(session, state=decision.state)
    if decision.outcome is not None:
        return _over_by_itself(state, session, decision.outcome)
    if decision.form:
        ranks = {
            each: Rank(Phase.START, place) for each in decision.form if (place := place_of(state, each)) is not None
        }
        lost = tuple((each, KILLED) for each in decision.form if each not in ranks)
        session = replace(
            Session(FORMING, session.listed, session.minimum, ranks, decision.form, lost),
            elastic=False,
            world=session.world + 1,
            engine=session.engine,
        )
        return _restarted(state, session) if lost else replace(state, session=session)
    if session.state is SETTLED:
        state = replace(state, trained=True)
    session = replace(
        session, interrupted=session.interrupted or decision.interrupt, killed=session.killed or decision.kill
    )
    if session.interrupted or session.killed:
        # Each writes its checkpoint, or is killed by its agent; one whose agent is silent goes with that.
        ranks = {each: replace(rank, phase=Phase.OUT) for each, rank in session.ranks.items()}
        session = replace(session, ranks=ranks)
    return replace(state, session=session)


def _reformed(state: State, session: Session) -> State:
    late = worlds.late(session.facts, told_broken=session.told_broken)
    if session.state is SETTLED:
        late = worlds.overdue(session.facts)
    elif worlds.absent(session.facts, told_broken=True):
        session = replace(session, given_up=session.told_broken, broken=True)
    state = replace(state, session=session)
    for rank_id in late:
        state = _stopped(state, rank_id)
    return _considered(state, state.session) if state.session else state


# What happens to a rank, and to a worker.


def _stopped(state: State, rank_id: str) -> State:
    """It is to end; who is silent does not hear of it."""
    rank = state.session.ranks.get(rank_id) if state.session else None
    return state if rank is None or rank.hang is Hang.SILENT else _over(state, rank_id, KILLED)


def _over(state: State, rank_id: str, code: int = 0, backoff: bool = False) -> State:
    """Its process has ended; the next one in its slot gets another name."""
    session = state.session
    assert session is not None
    ranks = {each: rank for each, rank in session.ranks.items() if each != rank_id}
    workers = tuple(
        replace(each, incarnation=each.incarnation + 1, usable_at=BACKOFF if backoff else each.usable_at)
        if each.rank_id == rank_id
        else each
        for each in state.workers
    )
    counts = rank_id in session.members or not session.members
    if session.engine is Engine.TORCHRUN:
        counts = not (session.interrupted or session.killed)
    exits = tuple(sorted({*session.exits, (rank_id, code)})) if counts else session.exits
    return _considered(replace(state, workers=workers), replace(session, ranks=ranks, exits=exits))


def _killed(state: State, rank_id: str) -> State:
    return _over(state, rank_id, KILLED, backoff=True)


def _gone(state: State, index: int) -> State:
    """A worker, with its ranks."""
    workers = list(state.workers)
    workers[index] = replace(workers[index], here=False, ready=False, leaving=False, silent_for=None)
    state = replace(state, workers=tuple(workers))
    ranks = state.session.ranks if state.session else {}
    for rank_id in [each for each, rank in ranks.items() if rank.place == index]:
        if state.session and rank_id in state.session.ranks:
            state = _killed(state, rank_id)
    return state


def _rank_steps(state: State, session: Session) -> Iterator[Step]:
    for rank_id, rank in session.ranks.items():
        if session.state is ENDED or rank.hang is Hang.SILENT:
            continue
        if rank.phase is Phase.OUT and not (rank.hang and session.engine is not Engine.TORCHRUN):
            yield f"{rank_id} is out", _over(state, rank_id), 0.0
        elif rank.hang:
            continue
        elif session.engine is Engine.TORCHRUN:
            yield from _script_steps(state, session, rank_id)
        elif rank.phase is Phase.TRAIN and session.told_broken and not session.elastic:
            yield f"{rank_id} fails", _over(state, rank_id, FAILED, backoff=True), 0.0
        elif following := _next_phase(session, rank.phase):
            moved = session.with_rank(rank_id, replace(rank, phase=following))
            yield f"{rank_id} -> {following}", _considered(state, moved), 0.0
        elif _waits_no_longer(state, session, rank):
            yield f"{rank_id} waits no longer", _considered(state, replace(session, broken=True)), 0.0
        elif rank.phase is Phase.TRAIN and not rank.synced and session.elastic and _can_work(session):
            synced = session.with_rank(rank_id, replace(rank, synced=True), had_state=True)
            yield f"{rank_id} has the state", _considered(state, synced), 0.0


def _script_steps(state: State, session: Session, rank_id: str) -> Iterator[Step]:
    """Of a process of one world."""
    rank = session.ranks[rank_id]
    if rank.phase is Phase.START:
        begun = session.with_rank(rank_id, replace(rank, phase=Phase.TRAIN), begun=session.begun | {rank_id})
        yield f"{rank_id} begins", _considered(state, begun), 0.0
    elif session.hangs and session.state is SETTLED:  # By the time-out of its own process group.
        yield f"{rank_id} waits no longer", _over(state, rank_id, FAILED, backoff=True), 0.0


def _waits_no_longer(state: State, session: Session, rank: Rank) -> bool:
    """For those that do not come: while ranks connect, and in collectives after a time that is not the same for all."""
    if not session.hangs or session.broken:
        return False
    if rank.phase is Phase.CONNECT:
        return True
    gloo = session.engine is Engine.HOROVOD and Hang.STOPPED in session.hangs  # Its background thread is, too.
    return rank.phase is Phase.TRAIN and (gloo or not session.elastic or state.quiet >= COLLECTIVE)


def _can_work(session: Session) -> bool:
    """All are there for a collective."""
    whole = all(each in session.ranks for each in session.members) and not session.hangs
    return whole and session.phases() == {Phase.TRAIN}


def _next_phase(session: Session, phase: Phase) -> Phase | None:
    """Where a rank goes by itself, if anywhere."""
    whole = all(each in session.ranks for each in session.members) and not session.hangs
    synced = all(session.ranks[each].synced for each in session.members if each in session.ranks)
    match phase:
        case Phase.START:
            return Phase.READY
        case Phase.CONNECT if session.told_broken:
            return Phase.READY
        case Phase.CONNECT if whole and session.phases() <= {Phase.CONNECT, Phase.TRAIN}:
            return Phase.TRAIN
        case Phase.TRAIN if session.told_broken or (session.leaves and whole and synced):
            return Phase.READY
        case _:
            return None


def _worker_steps(state: State) -> Iterator[Step]:
    """The worker set has as many as wanted."""
    for worker in state.workers:
        changed = None
        if worker.here and not worker.ready:
            changed = replace(worker, ready=True)
        staying = sum(each.here and not each.leaving for each in state.workers)
        if not worker.here and staying < state.wanted:
            changed = Worker(worker.index, worker.life + 1, ready=False)
        if changed:
            workers = tuple(changed if each.index == worker.index else each for each in state.workers)
            yield f"{changed.name} {'is ready' if changed.ready else 'comes'}", replace(state, workers=workers), 0.0


def progress(state: State) -> Iterator[Step]:
    """Everything that can happen next by itself, at once."""
    if state.ended:
        return
    following = decided(state)
    if following.key != state.key:
        yield "the launcher decides", following, 0.0
    if state.session:
        for name, after, seconds in _rank_steps(state, state.session):
            yield name, _normal(after), seconds
    for name, after, seconds in _worker_steps(state):
        yield name, _normal(after), seconds


def max_wait(state: State) -> Iterator[Step]:
    """What happens when nothing else does: machines with a notice are taken, and time passes."""
    leaving = [each for each in state.workers if each.here and each.leaving]
    for worker in leaving:
        yield f"{worker.name} is taken", _normal(_gone(state, worker.index)), 0.0
    if leaving or state.ended:
        return
    seconds, state = 1, _normal(_later(state))
    # Without each second between, in which somebody might do something, or the search takes hours.
    at_once = state.has_hung or not state.disturbances
    while at_once and seconds < LONGEST and not any(True for _ in progress(state)) and not state.trains:
        seconds, state = seconds + 1, _normal(_later(state))
    yield f"{seconds} s pass", state, float(seconds)


def disturbed(state: State) -> Iterator[Step]:
    """Everything that somebody may do to it."""
    if not state.disturbances or state.ended:
        return
    state = replace(state, disturbances=state.disturbances - 1)
    if state.hangs_first and not state.has_hung:
        yield from _hanging(state)
        return
    for worker in state.workers:
        if not worker.here:
            continue
        yield f"the agent of {worker.name} dies", _normal(_gone(state, worker.index)), 0.0
        if not worker.leaving:
            noticed = replace(worker, leaving=True)
            workers = tuple(noticed if each.index == worker.index else each for each in state.workers)
            yield f"a notice for {worker.name}", _normal(replace(state, workers=workers)), 0.0
    for size in range(state.settings.workers.minimum, WORKERS + 1) if state.elastic else ():
        if size != state.wanted:
            yield f"{size} are wanted", _normal(_resized(state, size)), 0.0
    for rank_id in state.session.ranks if state.session else ():
        yield f"{rank_id} is killed", _normal(_killed(state, rank_id)), 0.0
    yield from _hanging(state)


def _hanging(state: State) -> Iterator[Step]:
    """Any of its ranks come to hang."""
    kinds, at_once = state.hangs
    session = state.session
    if session is None or session.state is ENDED:
        return
    well = sorted(each for each, rank in session.ranks.items() if rank.hang is None)
    for number in range(1, min(at_once, len(well)) + 1):
        for who, how in product(combinations(well, number), product(sorted(kinds), repeat=number)):
            untold = not session.had_state and session.state is SETTLED and Hang.SILENT not in {*how, *session.hangs}
            if untold and set(session.members).intersection(well) <= set(who):
                continue  # Nobody can tell a script all of whose ranks sleep from one that works, if it has no state.
            ranks, workers = dict(session.ranks), list(state.workers)
            for rank_id, hang in zip(who, how, strict=True):
                ranks[rank_id] = replace(ranks[rank_id], hang=hang)
                if hang is Hang.SILENT:
                    place = ranks[rank_id].place
                    workers[place] = replace(workers[place], silent_for=0.0)
            hung = replace(state, session=replace(session, ranks=ranks), workers=tuple(workers), has_hung=True)
            names = " and ".join(f"{rank_id} is {hang}" for rank_id, hang in zip(who, how, strict=True))
            yield names, hung, 0.0


def _resized(state: State, size: int) -> State:
    """The newest workers too many get a notice."""
    staying = sorted((each for each in state.workers if each.here and not each.leaving), key=lambda each: each.life)
    surplus = {each.index for each in staying[size:]}
    workers = tuple(replace(each, leaving=each.leaving or each.index in surplus) for each in state.workers)
    return replace(state, wanted=size, workers=workers)


# Time, and what makes two states one.


SINCE = ("launched", "short_since", "gathering_since", "forming_since", "starting_since", "silent_since")


def _later(state: State) -> State:
    """A second later; now is 0 again."""
    clocks, inquiry = state.clocks, state.inquiry
    moments = {name: None if (moment := getattr(clocks, name)) is None else moment - 1.0 for name in SINCE}
    workers = tuple(
        replace(
            each,
            usable_at=max(0.0, each.usable_at - 1.0),
            silent_for=None if each.silent_for is None else each.silent_for + 1.0,
        )
        for each in state.workers
    )
    if inquiry:
        acted = None if inquiry.acted is None else inquiry.acted - 1.0
        inquiry = replace(inquiry, asked=inquiry.asked - 1.0, acted=acted)
    later = replace(state, clocks=replace(clocks, **moments), workers=workers, inquiry=inquiry, quiet=state.quiet + 1.0)
    session = state.session
    if session and _can_work(session) and session.state is SETTLED:
        later = replace(later, quiet=0.0, commits=min(2, state.commits + 1), begun=True, stalls=())
    if session and session.members and not session.hurries and worlds.starting(session.facts):
        later = _considered(later, replace(session, hurries=True))
    for worker in workers:
        if worker.here and worker.silent_for is not None and worker.silent_for > SILENCE:
            later = _gone(later, worker.index)
    return later


def _normal(state: State) -> State:
    """Without what makes no difference any more."""
    longest = {"launched": START_TIMEOUT, "short_since": MAX_WAIT, "gathering_since": 2.0, "forming_since": MAX_WAIT}
    longest |= {"starting_since": START_TIMEOUT, "silent_since": SILENCE}
    clocks = state.clocks
    moments = {
        name: max(moment, -most - 1.0)
        for name, most in longest.items()
        if (moment := getattr(clocks, name)) is not None
    }
    if state.trained:
        moments["launched"] = 0.0
    clocks = replace(clocks, **moments)
    inquiry, quiet = state.inquiry, min(state.quiet, COLLECTIVE + 1.0)
    session = state.session
    if session is None or session.state is not SETTLED or not session.hangs:
        quiet, inquiry = 0.0, None  # Nothing keeps it from committing.
    if not state.hangs[1]:
        state = replace(state, commits=2, begun=True)
    if inquiry:
        inquiry = replace(inquiry, asked=max(inquiry.asked, -COLLECTIVE - 1.0))
    state = replace(state, clocks=clocks, inquiry=inquiry, quiet=quiet)
    if session is None:
        return replace(state, clocks=replace(clocks, world=0))
    same = session.world == clocks.world
    # Two worlds are told apart by their number; 0 is no world, and 1 the first.
    is_first = session.world <= 1
    number, seen = (session.world, clocks.world) if is_first else (2 if same else 3, 2)
    return replace(state, clocks=replace(clocks, world=seen), session=replace(session, world=number))
