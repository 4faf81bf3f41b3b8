"""The states of a run whose worlds form, as values; what changes them: :mod:`.forming_model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.launcher.decision.facts import (
    Clocks,
    DecisionSettings,
)
from elastic_runtime.run.spec import RecoveryMode, RecoverySpec, Timing, WorkersSpec

FORMING, SETTLED, WAITING, ENDED = SessionState.FORMING, SessionState.SETTLED, SessionState.WAITING, SessionState.ENDED
WORKERS = 3
ATTEMPTS = 2
"""How often a newcomer is started; the session's four add nothing but states."""
FORMING_TIME = 3.0
MAX_WAIT = 8.0
"""For which ranks that hold the state are waited for while none of them has come back. It ends no run here."""
BACKOFF = 1.0


def settings_for(minimum: int, mode: RecoveryMode = RecoveryMode.ELASTIC) -> DecisionSettings:
    """Short times: what waits, waits for a few ticks. Those that end a run are out of reach: an end is no recovery."""
    recovery = RecoverySpec(mode, max_wait=MAX_WAIT, start_timeout=1000.0, rank_failures=1000)
    return DecisionSettings(
        WorkersSpec(minimum, minimum, WORKERS), recovery, Timing(lease=0.0, gather=2.0, forming=FORMING_TIME)
    )


class Phase(StrEnum):
    """What a rank's process does."""

    START = "start"
    """A newcomer, on its way to the roll call."""
    BACK = "back"
    """Assigned at the barrier, on its way to the roll call."""
    CALLED = "called"
    """At the roll call."""
    INSIDE = "inside"
    """In ``hvd.init()``."""
    TRAIN = "train"
    READY = "ready"
    """At the barrier."""
    OUT = "out"
    """In no world any more, on its way out."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A process."""

    phase: Phase
    place: int
    """Index of the worker on which it runs."""
    synced: bool = False
    """Whether it has the state: the truth, which the launcher does not know."""
    attempts: int = 1
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """A place for one rank; when its machine is gone, the next one takes its place under another name."""

    index: int
    life: int = 0
    here: bool = True
    ready: bool = True
    leaving: bool = False
    incarnation: int = 0
    usable_at: float = 0.0

    @property
    def name(self) -> str:
        return f"{'abc'[self.index]}{self.life}"

    @property
    def rank_id(self) -> str:
        return f"{self.name}.{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Session:
    """A life of the driver."""

    state: SessionState
    listed: tuple[str, ...]
    minimum: int
    ranks: Mapping[str, Rank] = field(default_factory=dict)
    """Processes by rank id."""
    members: tuple[str, ...] = ()
    complete: tuple[str, ...] = ()
    proven: frozenset[str] = frozenset()
    blacklist: frozenset[str] = frozenset()
    """Ranks that had failed when the barrier was full."""
    stage: Stage = Stage.CONNECTING
    late_stopped: bool = False
    elastic: bool = True
    """Its ranks go on in another world; else they fail when a peer is lost, and nobody holds a state."""
    called: bool = False
    """Whether the roll call was complete."""
    world: int = 0

    @property
    def available(self) -> tuple[str, ...]:
        return tuple(each for each in self.listed if each not in self.blacklist)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(each for each in self.members if each not in self.ranks)

    @property
    def holders(self) -> tuple[str, ...] | None:
        if not self.complete or not self.elastic:
            return None
        running = [each for each in self.complete if each in self.members and each in self.ranks]
        return tuple([each for each in running if each in self.proven] or running)

    @property
    def can_go_on(self) -> bool:
        """At the barrier."""
        ready = {each for each, rank in self.ranks.items() if rank.phase is Phase.READY}
        return len(self.available) >= self.minimum and not ready.isdisjoint(self.available)

    @property
    def resets(self) -> bool:
        """Whether the world ends at the next commit, or its end has begun."""
        ranks = [self.ranks[each] for each in self.members if each in self.ranks]
        differs = set(self.available) != set(self.members) and len(self.available) >= self.minimum
        return (differs and all(rank.synced for rank in ranks)) or any(rank.phase is Phase.READY for rank in ranks)

    @property
    def fact(self) -> SessionFact:
        outcome = SessionOutcome.LOST if self.state is ENDED else None
        missing = self.missing if self.state is FORMING and self.stage is Stage.CONNECTING else ()
        awaited = self.awaited if self.state is FORMING else ()
        here = [each for each in self.members if each in self.ranks]
        return SessionFact(
            self.state,
            self.listed,
            outcome,
            world=self.world,
            holders=self.holders,
            minimum=self.minimum,
            missing=missing,
            given_up=self.late_stopped,
            stage=self.stage,
            awaited=awaited,
            arrived=tuple(each for each in here if self.state is FORMING and each not in awaited),
        )

    @property
    def awaited(self) -> tuple[str, ...]:
        here = {each: self.ranks[each].phase for each in self.members if each in self.ranks}
        if self.stage is not Stage.CONNECTING:
            return tuple(each for each, phase in here.items() if phase is not Phase.READY)
        return self.not_called or tuple(each for each, phase in here.items() if phase is Phase.INSIDE)

    @property
    def not_called(self) -> tuple[str, ...]:
        on_the_way = (Phase.START, Phase.BACK)
        return tuple(each for each in self.members if each in self.ranks and self.ranks[each].phase in on_the_way)

    @property
    def has_stalled(self) -> bool:
        """A member hears nothing and says nothing: collectives with it, and ``hvd.init()``, time out."""
        return any(self.ranks[each].stalled for each in self.members if each in self.ranks)

    def over(self) -> Session:
        """One cannot go on in the present world."""
        if self.state is FORMING and self.stage is Stage.CONNECTING:
            return replace(self, stage=Stage.RETREATING)
        return replace(self, state=FORMING, stage=Stage.RETURNING) if self.state is SETTLED else self

    def with_ranks(self, changes: Mapping[str, Rank], **others: object) -> Session:
        return replace(self, ranks={**self.ranks, **changes}, **others)  # type: ignore[arg-type]  # each is right

    @property
    def key(self) -> object:
        """What makes it another session."""
        values = (self.state, self.listed, self.minimum, self.members, self.complete, self.proven, self.blacklist)
        return (
            *values,
            self.stage,
            self.late_stopped,
            self.called,
            self.world,
            tuple(sorted(self.ranks.items(), key=lambda i: i[0])),
        )


@dataclass(frozen=True, slots=True)
class State:
    """Of the whole run; now is 0."""

    settings: DecisionSettings
    wanted: int
    workers: tuple[Worker, ...]
    session: Session | None = None
    trained: bool = False
    clocks: Clocks = field(default_factory=lambda: Clocks(launched=0.0))
    disturbances: int = 0
    """That may still come."""
    elastic: bool = True
    """See :class:`Session`."""
    lost: str = ""
    """How a state was lost that a living rank had."""
    ended: str = ""
    """Why the run has failed."""

    @property
    def key(self) -> object:
        session = self.session.key if self.session else None
        return (self.wanted, self.workers, session, self.trained, self.clocks, self.disturbances, self.lost, self.ended)

    @property
    def trains(self) -> bool:
        """A world of living ranks that have the state; and no other one is wanted."""
        session = self.session
        if session is None or session.state is not SETTLED:
            return False
        alive = [session.ranks.get(each) for each in session.members]
        wished = set(session.available) == set(session.members) or len(session.available) < session.minimum
        if session.has_stalled or not (wished or not self.elastic):
            return False
        return all(rank is not None and rank.phase is Phase.TRAIN and rank.synced for rank in alive)


def at_rest(
    minimum: int, size: int, disturbances: int, mode: RecoveryMode = RecoveryMode.ELASTIC, *, elastic: bool = True
) -> State:
    """So many workers, and all of them train."""
    workers = tuple(Worker(index, here=index < size, ready=index < size) for index in range(WORKERS))
    members = tuple(worker.rank_id for worker in workers[:size])
    ranks = {each: Rank(Phase.TRAIN, index, synced=True) for index, each in enumerate(members)}
    least = size if mode is RecoveryMode.FIXED else minimum
    proven = frozenset(members)
    session = Session(SETTLED, members, least, ranks, members, members, proven, elastic=elastic, world=1)
    settings = settings_for(minimum, mode)
    return State(settings, size, workers, session, trained=True, disturbances=disturbances, elastic=elastic)


def at_start(minimum: int, size: int, disturbances: int, *, elastic: bool = True) -> State:
    """Nobody is there."""
    workers = tuple(Worker(index, here=False, ready=False) for index in range(WORKERS))
    return State(settings_for(minimum), size, workers, disturbances=disturbances, elastic=elastic)


def place_of(state: State, rank_id: str) -> int | None:
    return next((each.index for each in state.workers if each.here and each.rank_id == rank_id), None)
