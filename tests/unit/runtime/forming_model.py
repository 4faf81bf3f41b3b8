"""A model of a run as far as its worlds go: three workers, the launcher's real decision, and the session's rules.

What the workers, the ranks, the barrier and the roll call do is restated here, each rule in a line or two (compare
:mod:`elastic_runtime.engines.horovod.session`); ``observe`` and ``decide`` are the launcher's own. A state is a value,
with times relative to now, so that states can be compared; a step is a name and the state that follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elastic_runtime.engines.base import Stage
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
    ATTEMPTS,
    BACKOFF,
    ENDED,
    FORMING,
    MAX_WAIT,
    SETTLED,
    WAITING,
    WORKERS,
    Phase,
    Rank,
    Session,
    State,
    Worker,
    place_of,
)

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
            return _assign(replace(state, session=Session(FORMING, ranks, minimum, elastic=state.elastic)), ranks)
        case ListRanks(ranks, minimum) if session:
            return replace(state, session=replace(session, listed=ranks, minimum=minimum))
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


def _reformed(state: State, session: Session) -> State:
    if session.stage is Stage.CONNECTING:
        late = session.not_called
        if session.missing or set(late) >= set(session.holders or ()):
            late = tuple(each for each in late if each not in session.complete)
        state = replace(state, session=session.over())
    else:
        late = session.awaited
        state = replace(state, session=replace(session, late_stopped=True))
    for rank_id in late:
        state = _over(state, rank_id)
    return state


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


# What happens to a rank, and to a worker.


def _over(state: State, rank_id: str, backoff: bool = False) -> State:
    """No process runs under this name any more; the next one in its slot gets another."""
    session = state.session
    assert session is not None
    ranks = {each: rank for each, rank in session.ranks.items() if each != rank_id}
    workers = tuple(
        replace(each, incarnation=each.incarnation + 1, usable_at=BACKOFF if backoff else each.usable_at)
        if each.rank_id == rank_id
        else each
        for each in state.workers
    )
    session = replace(session, ranks=ranks)
    if rank_id in session.members and session.state is SETTLED:
        session = session.over()
    return replace(state, session=session, workers=workers)


def _killed(state: State, rank_id: str) -> State:
    """A newcomer that has not come to a complete roll call is started again, if there is a place."""
    session = state.session
    assert session is not None
    rank = session.ranks[rank_id]
    restarts = rank_id not in session.complete and rank_id in session.members and not rank.synced
    if restarts and not session.called and session.stage is Stage.CONNECTING and rank.attempts < ATTEMPTS:
        place = place_of(state, rank_id)
        if place is not None:
            again = Rank(Phase.START, place, attempts=rank.attempts + 1)
            return replace(state, session=session.with_ranks({rank_id: again}))
    return _over(state, rank_id, backoff=True)


def _gone(state: State, index: int) -> State:
    """A worker, with its ranks."""
    workers = list(state.workers)
    workers[index] = replace(workers[index], here=False, ready=False, leaving=False)
    state = replace(state, workers=tuple(workers))
    ranks = state.session.ranks if state.session else {}
    for rank_id in [each for each, rank in ranks.items() if rank.place == index]:
        state = _killed(state, rank_id)
    return state


# What the driver does.


def _assign(state: State, members: tuple[str, ...]) -> State:
    """The next world: who is at the barrier goes back to the roll call, or out; newcomers are started."""
    session = state.session
    assert session is not None
    members = tuple(sorted(members, key=lambda each: each not in session.members))
    ranks: dict[str, Rank] = {}
    for rank_id, rank in session.ranks.items():
        ranks[rank_id] = replace(rank, phase=Phase.BACK if rank_id in members else Phase.OUT)
    for rank_id in members:
        known = rank_id in session.ranks or rank_id in session.members
        place = None if known else place_of(state, rank_id)
        if place is not None:
            ranks[rank_id] = Rank(Phase.START, place)
    world = session.world + 1
    fresh = replace(session, state=FORMING, members=members, ranks=ranks, called=False, world=world)
    fresh = replace(fresh, stage=Stage.CONNECTING, late_stopped=False)
    return replace(state, session=fresh)


def _driver_ends(state: State, why: str) -> State:
    session = state.session
    assert session is not None
    return replace(_end(state, f"the driver: {why}"), session=replace(session, state=ENDED, ranks={}))


def _driver_steps(state: State, session: Session) -> Iterator[Step]:
    alive = {each: session.ranks[each] for each in session.members if each in session.ranks}
    phases = {rank.phase for rank in alive.values()}
    is_connecting = session.stage is Stage.CONNECTING
    can_connect = is_connecting and not session.has_stalled
    if session.state is WAITING:
        if session.can_go_on:
            yield "enough for a world", _assign(state, session.available)
    elif session.state is not ENDED and phases <= {Phase.READY}:
        failed = replace(session, blacklist=session.blacklist | set(session.missing))
        full = replace(state, session=failed)
        if not alive:
            yield "all failed", _driver_ends(full, "all failed")
        elif not failed.can_go_on:
            yield "too few at the barrier", replace(full, session=replace(failed, state=WAITING))
        else:
            yield "all at the barrier", _assign(full, failed.available)
    elif session.state is FORMING and not session.missing and phases == {Phase.CALLED} and is_connecting:
        inside = {each: replace(rank, phase=Phase.INSIDE) for each, rank in alive.items()}
        yield "the roll call is complete", replace(state, session=session.with_ranks(inside, called=True))
    elif session.state is FORMING and not session.missing and phases == {Phase.INSIDE} and can_connect:
        train = {each: replace(rank, phase=Phase.TRAIN) for each, rank in alive.items()}
        settled = session.with_ranks(train, state=SETTLED, complete=session.members)
        yield "the world is complete", replace(state, session=settled, trained=True)
    elif session.state is SETTLED and not session.has_stalled and phases == {Phase.TRAIN}:
        yield from _training_steps(state, session, alive)


def _training_steps(state: State, session: Session, alive: dict[str, Rank]) -> Iterator[Step]:
    if not all(rank.synced for rank in alive.values()):
        synced = {each: replace(rank, synced=True) for each, rank in alive.items()}
        older = any(rank.synced for rank in alive.values()) and not alive[session.members[0]].synced
        lost = state.lost or (f"rank 0 has no state: {session.members}" if older else "")
        yield "the state is synced", replace(state, session=session.with_ranks(synced), lost=lost)
    elif session.proven != frozenset(session.members):
        yield "a commit", replace(state, session=replace(session, proven=frozenset(session.members)))


def _rank_steps(state: State, session: Session) -> Iterator[Step]:
    for rank_id, rank in session.ranks.items():
        if rank.stalled:
            continue
        if rank.phase is Phase.OUT:
            yield f"{rank_id} is out", _over(state, rank_id)
        elif following := _next_phase(session, rank.phase):
            if rank.phase is Phase.TRAIN and not session.elastic:
                yield f"{rank_id} fails", _over(state, rank_id, backoff=True)
                continue
            moved = session.with_ranks({rank_id: replace(rank, phase=following)})
            moved = moved.over() if following is Phase.READY else moved
            yield f"{rank_id} -> {following}", replace(state, session=moved)


def _next_phase(session: Session, phase: Phase) -> Phase | None:
    """Where a rank goes by itself, if anywhere."""
    given_up = session.stage is Stage.RETREATING
    match phase:
        case Phase.START | Phase.BACK:
            return Phase.READY if given_up else Phase.CALLED
        case Phase.CALLED:
            return Phase.READY if given_up else None
        case Phase.INSIDE:
            return Phase.READY if given_up or session.missing or session.has_stalled else None
        case Phase.TRAIN:
            planned = session.resets and session.elastic
            return Phase.READY if session.missing or session.has_stalled or planned else None
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
        for name, after in (*_driver_steps(state, state.session), *_rank_steps(state, state.session)):
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
            stalled = state.session.with_ranks({rank_id: replace(rank, stalled=True)})
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
    return bool(session.complete) and (session.elastic or session.world > 1)


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
        for name in ("launched", "short_since", "gathering_since", "forming_since")
    }
    workers = tuple(replace(each, usable_at=max(0.0, each.usable_at - 1.0)) for each in state.workers)
    return replace(state, clocks=replace(clocks, **moments), workers=workers)


def _normal(state: State) -> State:
    """Without what makes no difference any more."""
    clocks = replace(state.clocks, launched=0.0)
    if clocks.short_since is not None:
        clocks = replace(clocks, short_since=0.0)
    if clocks.forming_since is not None:
        clocks = replace(clocks, forming_since=max(clocks.forming_since, -MAX_WAIT - 1))
    if clocks.gathering_since is not None:
        clocks = replace(clocks, gathering_since=max(clocks.gathering_since, -3.0))
    session = state.session
    if session is None:
        return replace(state, clocks=replace(clocks, world=0))
    same = session.world == clocks.world
    current = set(session.members) | set(session.listed)
    # None of it may be left; that there was one makes a difference.
    complete = tuple(each for each in session.complete if each in current or each in session.ranks)
    complete = complete or session.complete[:1]
    # Two worlds are told apart by their number; 0 is no world, and 1 the first.
    is_first = session.world == 1
    number, seen = (1, clocks.world) if is_first else (2 if same else 3, 2)
    session = replace(
        session,
        world=number,
        blacklist=session.blacklist & current,
        complete=complete,
        proven=session.proven & current,
    )
    return replace(state, clocks=replace(clocks, world=seen), session=session)
