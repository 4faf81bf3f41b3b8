"""The states of a run whose worlds form, as values; what changes them: :mod:`.forming_model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.engines.torch.worlds import Facts, RankFact, absent, starting
from elastic_runtime.launcher.decision.facts import Clocks, DecisionSettings
from elastic_runtime.run.spec import RecoveryMode, RecoverySpec, Timing, WorkersSpec

FORMING, SETTLED, WAITING, ENDED = SessionState.FORMING, SessionState.SETTLED, SessionState.WAITING, SessionState.ENDED
WORKERS = 3
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
    """A newcomer, before ``hvd.init()``."""
    READY = "ready"
    """It has said that it is ready for a world."""
    CONNECT = "connect"
    """It has been told its place in one."""
    TRAIN = "train"
    OUT = "out"
    """In no world any more, on its way out."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A process."""

    phase: Phase
    place: int
    """Index of the worker on which it runs."""
    synced: bool = False
    """Whether it has the state, and has said so."""
    stalled: bool = False

    @property
    def fact(self) -> RankFact:
        return RankFact(ready=self.phase is Phase.READY, connected=self.phase is Phase.TRAIN, synced=self.synced)


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
    """What the real one keeps: :class:`elastic_runtime.engines.torch.session.TorchSession`."""

    state: SessionState
    listed: tuple[str, ...]
    minimum: int
    ranks: Mapping[str, Rank] = field(default_factory=dict)
    """Processes by rank id."""
    members: tuple[str, ...] = ()
    exits: tuple[tuple[str, int], ...] = ()
    had_state: bool = False
    broken: bool = False
    told_broken: bool = False
    given_up: bool = False
    leaves: bool = False
    """Whether its members have heard that another world is wanted."""
    hurries: bool = False
    elastic: bool = True
    """Its ranks go on in another world; else they fail when a peer is lost, and nobody holds a state."""
    world: int = 0

    @property
    def facts(self) -> Facts:
        return Facts(
            self.listed,
            self.minimum,
            {each: rank.fact for each, rank in self.ranks.items()},
            self.members,
            dict(self.exits),
            broken=self.broken,
            had_state=self.had_state,
            hurries=self.hurries,
            may_be_alone=True,
        )

    @property
    def fact(self) -> SessionFact:
        facts = self.facts
        whole = not self.broken and all(each in self.ranks for each in self.members)
        waits = not absent(facts, told_broken=True)
        awaited = absent(facts, told_broken=self.told_broken) if self.state is FORMING else ()
        return SessionFact(
            self.state,
            self.listed,
            SessionOutcome.LOST if self.state is ENDED else None,
            world=self.world,
            holders=facts.holders if self.had_state else None,
            minimum=self.minimum,
            given_up=self.given_up and not waits,
            waiting=tuple(each for each in facts.holders if facts.running[each].ready),
            stage=Stage.CONNECTING if whole or waits else Stage.RETURNING,
            awaited=awaited,
            arrived=tuple(each for each in facts.here if self.state is FORMING and each not in awaited),
            starting=starting(facts) if self.members else (),
        )

    @property
    def has_stalled(self) -> bool:
        """A member hears nothing and says nothing: collectives with it, and ``hvd.init()``, time out."""
        return any(self.ranks[each].stalled for each in self.members if each in self.ranks)

    def phases(self) -> set[Phase]:
        return {self.ranks[each].phase for each in self.members if each in self.ranks}

    def with_rank(self, rank_id: str, rank: Rank, **others: object) -> Session:
        return replace(self, ranks={**self.ranks, rank_id: rank}, **others)  # type: ignore[arg-type]  # each is right

    @property
    def key(self) -> object:
        """What makes it another session."""
        ranks = tuple(sorted(self.ranks.items(), key=lambda item: item[0]))
        return (ranks, *(getattr(self, each.name) for each in fields(self) if each.name != "ranks"))


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
        wished = set(session.listed) == set(session.members) or len(session.listed) < session.minimum
        if session.has_stalled or not (wished or not self.elastic):
            return False
        alive = [session.ranks.get(each) for each in session.members]
        return all(
            rank is not None and rank.phase is Phase.TRAIN and (rank.synced or not self.elastic) for rank in alive
        )


def at_rest(
    minimum: int, size: int, disturbances: int, mode: RecoveryMode = RecoveryMode.ELASTIC, *, elastic: bool = True
) -> State:
    """So many workers, and all of them train."""
    workers = tuple(Worker(index, here=index < size, ready=index < size) for index in range(WORKERS))
    members = tuple(worker.rank_id for worker in workers[:size])
    ranks = {each: Rank(Phase.TRAIN, index, synced=elastic) for index, each in enumerate(members)}
    least = size if mode is RecoveryMode.FIXED else minimum
    session = Session(SETTLED, members, least, ranks, members, had_state=elastic, elastic=elastic, world=1)
    settings = settings_for(minimum, mode)
    return State(settings, size, workers, session, trained=True, disturbances=disturbances, elastic=elastic)


def at_start(minimum: int, size: int, disturbances: int, *, elastic: bool = True) -> State:
    """Nobody is there."""
    workers = tuple(Worker(index, here=False, ready=False) for index in range(WORKERS))
    return State(settings_for(minimum), size, workers, disturbances=disturbances, elastic=elastic)


def place_of(state: State, rank_id: str) -> int | None:
    return next((each.index for each in state.workers if each.here and each.rank_id == rank_id), None)
