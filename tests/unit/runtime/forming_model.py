"""A model of a run as far as its worlds go: three workers, the launcher's real decision, and the session's real rules.

``observe`` and ``decide`` are the launcher's own, and so is ``worlds.decide`` of the session. What the session does
with its answer (compare :mod:`elastic_runtime.engines.torch.session`), and what workers and ranks do, is restated here,
each rule in a line or two. A state is a value, with times relative to now, so that states can be compared; a step is a
name and the state that follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elastic_runtime.engines.torch import worlds
from elastic_runtime.launcher.decision.decide import decide, observe
from elastic_runtime.launcher.decision.facts import (
    Action,
    CloseSession,
    Facts,
    Finish,
    ListRanks,
    OpenSession,
    ReformWorld,
    ReleaseWorker,
    SlotFact,
    WorkerFact,
)
from tests.unit.runtime.forming_state import (
    BACKOFF,
    ENDED,
    FORMING,
    FORMING_TIME,
    MAX_WAIT,
    SETTLED,
    WORKERS,
    Phase,
    Rank,
    Session,
    State,
    Worker,
    place_of,
)

KILLED, FAILED = -9, 1
Step = tuple[str, State]


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
            opened = Session(FORMING, (), minimum, elastic=state.elastic)
            return _listed(replace(state, session=opened), opened, ranks, minimum)
        case ListRanks(ranks, minimum) if session:
            return _listed(state, session, ranks, minimum)
        case ReformWorld() if session:
            return _reformed(state, session)
        case CloseSession():
            return _end(state, reason)
        case ReleaseWorker(name):
            return _gone(state, next(each.index for each in state.workers if each.name == name))
        case Finish():
            return replace(state, ended=reason)
        case _:
            raise AssertionError(action)


def _end(state: State, reason: str) -> State:
    """No session any more, and no rank. Worth a remark when one of them had the state, and could have handed it on."""
    session = state.session
    assert session is not None
    ranks = session.ranks.items()
    holders = [each for each, rank in ranks if rank.synced and rank.phase is not Phase.OUT and not rank.stalled]
    lost = state.lost or (f"{reason}: {holders}" if holders and state.elastic else "")
    workers = tuple(
        replace(each, incarnation=each.incarnation + 1) if each.rank_id in session.ranks else each
        for each in state.workers
    )
    return replace(state, session=None, workers=workers, lost=lost)


# What the session does.


def _listed(state: State, session: Session, ranks: tuple[str, ...], minimum: int) -> State:
    running = dict(session.ranks)
    for rank_id in ranks:
        place = place_of(state, rank_id)
        if rank_id not in running and place is not None:
            running[rank_id] = Rank(Phase.START, place)
    return _considered(state, replace(session, listed=ranks, minimum=minimum, ranks=running))


def _considered(state: State, session: Session) -> State:
    """As ``_consider``: after whatever has happened."""
    if session.state is ENDED:
        return replace(state, session=session)
    decision = worlds.decide(session.facts)
    session = replace(session, state=decision.state)
    if decision.outcome is not None:
        ended = _end(replace(state, session=session), f"the session: {decision.outcome}")
        return replace(ended, session=replace(session, ranks={}))
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
    )
    return _considered(replace(state, lost=lost), formed)


def _reformed(state: State, session: Session) -> State:
    late = worlds.late(session.facts, told_broken=session.told_broken)
    if session.state is SETTLED:
        late = worlds.overdue(session.facts)
    elif worlds.absent(session.facts, told_broken=True):
        session = replace(session, given_up=session.told_broken, broken=True)
    state = replace(state, session=session)
    for rank_id in late:
        state = _over(state, rank_id, KILLED)
    return _considered(state, state.session) if state.session else state


# What happens to a rank, and to a worker.


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
    exits = tuple(sorted({*session.exits, (rank_id, code)})) if counts else session.exits
    return _considered(replace(state, workers=workers), replace(session, ranks=ranks, exits=exits))


def _killed(state: State, rank_id: str) -> State:
    return _over(state, rank_id, KILLED, backoff=True)


def _gone(state: State, index: int) -> State:
    """A worker, with its ranks."""
    workers = list(state.workers)
    workers[index] = replace(workers[index], here=False, ready=False, leaving=False)
    state = replace(state, workers=tuple(workers))
    ranks = state.session.ranks if state.session else {}
    for rank_id in [each for each, rank in ranks.items() if rank.place == index]:
        if state.session and rank_id in state.session.ranks:
            state = _killed(state, rank_id)
    return state


def _rank_steps(state: State, session: Session) -> Iterator[Step]:
    for rank_id, rank in session.ranks.items():
        if rank.stalled or session.state is ENDED:
            continue
        if rank.phase is Phase.OUT:
            yield f"{rank_id} is out", _over(state, rank_id)
        elif rank.phase is Phase.TRAIN and session.told_broken and not session.elastic:
            yield f"{rank_id} fails", _over(state, rank_id, FAILED, backoff=True)
        elif following := _next_phase(session, rank.phase):
            moved = session.with_rank(rank_id, replace(rank, phase=following))
            yield f"{rank_id} -> {following}", _considered(state, moved)
        elif rank.phase in (Phase.TRAIN, Phase.CONNECT) and session.has_stalled and not session.broken:
            yield f"{rank_id} waits no longer", _considered(state, replace(session, broken=True))
        elif rank.phase is Phase.TRAIN and not rank.synced and session.elastic and _can_work(session):
            synced = session.with_rank(rank_id, replace(rank, synced=True), had_state=True)
            yield f"{rank_id} has the state", _considered(state, synced)


def _can_work(session: Session) -> bool:
    """All are there for a collective."""
    whole = all(each in session.ranks for each in session.members) and not session.has_stalled
    return whole and session.phases() == {Phase.TRAIN}


def _next_phase(session: Session, phase: Phase) -> Phase | None:
    """Where a rank goes by itself, if anywhere."""
    whole = all(each in session.ranks for each in session.members) and not session.has_stalled
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
            yield f"{changed.name} {'is ready' if changed.ready else 'comes'}", replace(state, workers=workers)


def progress(state: State) -> Iterator[Step]:
    """Everything that can happen next by itself, at once."""
    if state.ended:
        return
    following = decided(state)
    if following.key != state.key:
        yield "the launcher decides", following
    if state.session:
        for name, after in _rank_steps(state, state.session):
            yield name, _normal(after)
    for name, after in _worker_steps(state):
        yield name, _normal(after)


def max_wait(state: State) -> Iterator[Step]:
    """What happens when nothing else does: machines with a notice are taken, and time passes."""
    leaving = [each for each in state.workers if each.here and each.leaving]
    for worker in leaving:
        yield f"{worker.name} is taken", _normal(_gone(state, worker.index))
    if not leaving and not state.ended:
        yield "time passes", _normal(_later(state))


def disturbed(state: State) -> Iterator[Step]:
    """Everything that somebody may do to it."""
    if not state.disturbances or state.ended:
        return
    state = replace(state, disturbances=state.disturbances - 1)
    for worker in state.workers:
        if not worker.here:
            continue
        yield f"the agent of {worker.name} dies", _normal(_gone(state, worker.index))
        if not worker.leaving:
            noticed = replace(worker, leaving=True)
            workers = tuple(noticed if each.index == worker.index else each for each in state.workers)
            yield f"a notice for {worker.name}", _normal(replace(state, workers=workers))
    for size in range(state.settings.workers.minimum, WORKERS + 1) if state.elastic else ():
        if size != state.wanted:
            yield f"{size} are wanted", _normal(_resized(state, size))
    for rank_id, rank in (state.session.ranks if state.session else {}).items():
        yield f"{rank_id} is killed", _normal(_killed(state, rank_id))
        if state.session and not rank.stalled and _is_bounded(state.session, rank_id, rank.phase):
            stalled = state.session.with_rank(rank_id, replace(rank, stalled=True))
            yield f"{rank_id} hangs", replace(state, session=stalled)


def _is_bounded(session: Session, rank_id: str, phase: Phase) -> bool:
    """Whether anybody notices that this rank hangs, other than a watchdog over a training that stands still."""
    others = any(
        not rank.stalled for each, rank in session.ranks.items() if each != rank_id and each in session.members
    )
    if phase is Phase.OUT:
        return False  # Its agent ends it.
    if phase is Phase.TRAIN:
        return others  # Their next collective times out.
    # A first world may take as long as the start may: nobody waits for it with a state.
    return session.had_state or session.world > 1


def _resized(state: State, size: int) -> State:
    """The newest workers too many get a notice."""
    staying = sorted((each for each in state.workers if each.here and not each.leaving), key=lambda each: each.life)
    surplus = {each.index for each in staying[size:]}
    workers = tuple(replace(each, leaving=each.leaving or each.index in surplus) for each in state.workers)
    return replace(state, wanted=size, workers=workers)


# Time, and what makes two states one.


def _later(state: State) -> State:
    """A second later; now is 0 again."""
    clocks = state.clocks
    moments = {
        name: None if (moment := getattr(clocks, name)) is None else moment - 1.0
        for name in ("launched", "short_since", "gathering_since", "forming_since", "starting_since")
    }
    workers = tuple(replace(each, usable_at=max(0.0, each.usable_at - 1.0)) for each in state.workers)
    later = replace(state, clocks=replace(clocks, **moments), workers=workers)
    session = state.session
    if session and session.members and not session.hurries and worlds.starting(session.facts):
        return _considered(later, replace(session, hurries=True))
    return later


def _normal(state: State) -> State:
    """Without what makes no difference any more."""
    clocks = replace(state.clocks, launched=0.0)
    if clocks.short_since is not None:
        clocks = replace(clocks, short_since=0.0)
    if clocks.forming_since is not None:
        clocks = replace(clocks, forming_since=max(clocks.forming_since, -MAX_WAIT - 1))
    if clocks.starting_since is not None:
        clocks = replace(clocks, starting_since=max(clocks.starting_since, -FORMING_TIME - 1))
    if clocks.gathering_since is not None:
        clocks = replace(clocks, gathering_since=max(clocks.gathering_since, -3.0))
    session = state.session
    if session is None:
        return replace(state, clocks=replace(clocks, world=0))
    same = session.world == clocks.world
    # Two worlds are told apart by their number; 0 is no world, and 1 the first.
    is_first = session.world <= 1
    number, seen = (session.world, clocks.world) if is_first else (2 if same else 3, 2)
    return replace(state, clocks=replace(clocks, world=seen), session=replace(session, world=number))
