"""The states of a run whose worlds form, as values; what changes them: :mod:`.forming_model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.engines.torch.worlds import Facts, RankFact, absent, starting
from elastic_runtime.engines.torchrun import worlds as restarts
from elastic_runtime.launcher.decision.facts import Clocks, DecisionSettings, Inquiry, Stall
from elastic_runtime.run.spec import RecoveryMode, RecoverySpec, Timing, WorkersSpec

FORMING, SETTLED, WAITING, ENDED = SessionState.FORMING, SessionState.SETTLED, SessionState.WAITING, SessionState.ENDED
WORKERS = 3
FORMING_TIME = 3.0
MAX_WAIT = 12.0
START_TIMEOUT = 16.0
STANDSTILL = 4.0
COLLECTIVE = 60.0
"""After which a collective ends, though nothing has happened."""
SILENCE = 5.0
"""After which an agent is lost that says nothing."""
BACKOFF = 1.0


def settings_for(minimum: int, mode: RecoveryMode = RecoveryMode.ELASTIC) -> DecisionSettings:
    """Short times: what waits, waits for a few ticks."""
    recovery = RecoverySpec(
        mode, max_wait=MAX_WAIT, start_timeout=START_TIMEOUT, rank_failures=1000, standstill=STANDSTILL
    )
    timing = Timing(lease=0.0, gather=2.0, forming=FORMING_TIME, stop_grace=1.0, agent_silence=SILENCE)
    return DecisionSettings(WorkersSpec(minimum, minimum, WORKERS), recovery, timing)


class Engine(StrEnum):
    """Whose rules apply."""

    HOROVOD = "horovod"
    TORCH = "torch"
    TORCHRUN = "torchrun"


class Hang(StrEnum):
    """How a rank takes no part any more."""

    STOPPED = "stopped"
    """Its process is, as by SIGSTOP."""
    ASLEEP = "asleep"
    """Its script waits for something that never comes; threads of its process answer."""
    SILENT = "silent"
    """So is its machine: no connection is closed, and nothing comes."""


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
    hang: Hang | None = None

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
    silent_for: float | None = None
    """Seconds since something was heard of it; None: it can be heard."""

    @property
    def name(self) -> str:
        return f"{'abc'[self.index]}{self.life}"

    @property
    def rank_id(self) -> str:
        return f"{self.name}.{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Session:
    """What the real ones keep: :class:`elastic_runtime.engines.torch.session.TorchSession` and its like."""

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
    engine: Engine = Engine.HOROVOD
    outcome: SessionOutcome | None = None
    begun: frozenset[str] = frozenset()
    """torchrun: members whose processes have begun with the script."""
    interrupted: bool = False
    """torchrun: all are to write their checkpoint and end."""
    killed: bool = False
    """torchrun: all that are left are to end at once."""

    @property
    def restart_facts(self) -> restarts.Facts:
        return restarts.Facts(
            self.listed,
            frozenset(self.listed),
            self.minimum,
            self.members,
            self.begun,
            frozenset(each for each in self.members if each not in self.ranks),
            dict(self.exits),
            interrupted=self.interrupted,
            waited=True,
        )

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
            may_be_alone=self.engine is Engine.HOROVOD,
        )

    @property
    def fact(self) -> SessionFact:
        if self.engine is Engine.TORCHRUN:
            begins = not self.interrupted and all(each in self.ranks for each in self.members)
            return SessionFact(
                self.state,
                self.listed,
                self.outcome,
                world=self.world,
                minimum=self.minimum,
                restarts=True,
                stage=Stage.CONNECTING if begins else Stage.LEAVING,
            )
        facts = self.facts
        whole = not self.broken and all(each in self.ranks for each in self.members)
        waits = not absent(facts, told_broken=True)
        named = self.state is FORMING and self.engine is Engine.HOROVOD
        awaited = absent(facts, told_broken=self.told_broken) if named else ()
        return SessionFact(
            self.state,
            self.listed,
            self.outcome,
            world=self.world,
            holders=facts.holders if self.had_state else None,
            unheard=() if whole else facts.unheard,  # Also where none had been connected to all.
            minimum=self.minimum,
            given_up=self.given_up and not waits,
            waiting=tuple(each for each in facts.holders if facts.running[each].ready),
            stage=Stage.CONNECTING if whole or waits else Stage.RETURNING,
            awaited=awaited,
            arrived=tuple(each for each in facts.here if named and each not in awaited),
            starting=starting(facts) if self.members else (),
            prepares=self.engine is Engine.TORCH,
        )

    @property
    def hangs(self) -> set[Hang | None]:
        """How its members that run do, if they hang."""
        return {self.ranks[each].hang for each in self.members if each in self.ranks} - {None}

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
    hangs: tuple[frozenset[Hang], int] = (frozenset(), 0)
    """How ranks may come to hang, as one of these, and how many at once."""
    hangs_first: bool = False
    """They do before anything else happens to them."""
    has_hung: bool = False
    """Some have."""
    elastic: bool = True
    """See :class:`Session`."""
    engine: Engine = Engine.HOROVOD
    quiet: float = 0.0
    """Seconds since the last commit, or since the world was complete."""
    commits: int = 2
    """Of the run, up to two: the first ones take as long as they like."""
    begun: bool = True
    """The present world has committed."""
    inquiry: Inquiry | None = None
    stalls: tuple[Stall, ...] = ()
    """Those without a commit since."""
    lost: str = ""
    """How a state was lost that a living rank had."""
    ended: str = ""
    """Why the run has failed."""

    @property
    def key(self) -> object:
        session = self.session.key if self.session else None
        others = (getattr(self, each.name) for each in fields(self) if each.name not in ("settings", "session"))
        return (session, *others)

    @property
    def trains(self) -> bool:
        """A world of living ranks that have the state; and no other one is wanted."""
        session = self.session
        if session is None or session.state is not SETTLED:
            return False
        wished = set(session.listed) == set(session.members) or len(session.listed) < session.minimum
        if session.hangs or not (wished or not self.elastic):
            return False
        alive = [session.ranks.get(each) for each in session.members]
        return all(
            rank is not None and rank.phase is Phase.TRAIN and (rank.synced or not self.elastic) for rank in alive
        )


def at_rest(
    minimum: int,
    size: int,
    disturbances: int,
    mode: RecoveryMode = RecoveryMode.ELASTIC,
    *,
    elastic: bool = True,
    engine: Engine = Engine.HOROVOD,
) -> State:
    """So many workers, and all of them train."""
    workers = tuple(Worker(index, here=index < size, ready=index < size) for index in range(WORKERS))
    members = tuple(worker.rank_id for worker in workers[:size])
    elastic = elastic and engine is not Engine.TORCHRUN
    ranks = {each: Rank(Phase.TRAIN, index, synced=elastic) for index, each in enumerate(members)}
    least = size if mode is RecoveryMode.FIXED else minimum
    session = Session(
        *(SETTLED, members, least, ranks, members),
        had_state=elastic,
        elastic=elastic,
        world=1,
        engine=engine,
        begun=frozenset(members),
    )
    return replace(
        at_start(minimum, size, disturbances, elastic=elastic, engine=engine),
        settings=settings_for(minimum, mode),
        workers=workers,
        session=session,
        trained=True,
        commits=2,
        begun=True,
    )


def at_start(
    minimum: int, size: int, disturbances: int, *, elastic: bool = True, engine: Engine = Engine.HOROVOD
) -> State:
    """Nobody is there."""
    workers = tuple(Worker(index, here=False, ready=False) for index in range(WORKERS))
    return State(
        *(settings_for(minimum), size, workers),
        disturbances=disturbances,
        elastic=elastic and engine is not Engine.TORCHRUN,
        engine=engine,
        commits=0,
        begun=False,
    )


def hanging(state: State, *kinds: Hang, at_once: int = WORKERS) -> State:
    """With ranks that may come to hang so."""
    return replace(state, hangs=(frozenset(kinds), at_once))


def place_of(state: State, rank_id: str) -> int | None:
    return next((each.index for each in state.workers if each.here and each.rank_id == rank_id), None)
