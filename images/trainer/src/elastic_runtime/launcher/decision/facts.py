"""Facts of the launcher, and its actions: plain values for :mod:`.observe` and :mod:`.decide`.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from elastic_runtime.engines.base import SessionFact, SessionState, Stage
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.shard_queues import Lease
from elastic_runtime.run.spec import RecoverySpec, Timing, WorkersSpec
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import COMMIT_CAUTION


@dataclass(frozen=True, slots=True)
class SlotFact:
    """State of one slot of a worker. A slot runs one rank at a time."""

    rank_id: str
    """Name of the rank that runs here, or of the next one."""
    usable_at: float = 0.0
    """Not before this: the slot's last rank failed."""


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """A worker whose agent is connected."""

    name: str
    ready: bool
    """Its ranks can start."""
    slots: tuple[SlotFact, ...]
    leaving: bool = False
    """It has had a notice."""
    running: bool = False
    """A rank runs here, in the world or on its way out of it."""
    gone_at: float | None = None
    """When the time of its notice is over; None: there is none, or its end is not known."""
    punctual: bool = False
    """It is there until then: see :attr:`.ReclaimNotice.punctual`."""
    joined: bool = False
    """By hand: the place neither starts nor replaces it."""


@dataclass(frozen=True, slots=True)
class CommitFact:
    """How the present world commits, as far as rank 0 tells, which is a few times a second at most."""

    last: float
    """When it told of one, or the world was complete."""
    longest: float | None
    """Seconds between two of the latest commits, at most; None: no two were seen in this run."""
    begun: bool = True
    """It has committed. Its first step may take longer than others."""
    told: int = 0
    """Commits that were told of, over the whole run."""

    @property
    def usual(self) -> float:
        """Seconds within which the next one comes, unless ranks evaluate, or wait; infinite if nobody knows."""
        return math.inf if self.longest is None else COMMIT_CAUTION * self.longest


@dataclass(frozen=True, slots=True)
class RankStanding:
    """What is known of a rank whose world has stopped to commit, after it was asked."""

    rank: int
    rank_id: str
    worker: str
    slot: str
    """Name of its place, which its replacement will have, too."""
    answered: bool = False
    """What follows was told by its process. An answer needs a thread of it that runs."""
    commits: int = 0
    """That it has begun in this world."""
    collectives: int | None = None
    """Likewise, of all ranks together, in the usual group; None: not known."""
    beside: int = 0
    """Likewise, in other groups of all ranks."""
    waits: bool = False
    """It is inside a framework, where ranks wait for each other."""
    place: str = ""
    """Lines of the script, the innermost first."""
    stopped: bool = False
    """Its process is, as its agent says."""
    in_commit: bool = False
    """It is inside a commit."""
    blocked: bool = False
    """It does nothing until others have done their part."""

    @property
    def known(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self.answered or self.stopped


@dataclass(frozen=True, slots=True)
class Stall:
    """A standstill after which ranks were replaced, or none was and the world was formed anew."""

    step: int | None
    """Global step of the newest commit that any rank had begun."""
    ranks: tuple[int, ...] = ()
    """Those at fault, as numbers of the world. Empty: nobody."""
    slots: tuple[str, ...] = ()
    """Likewise, as names of places."""
    told: int = 0
    """:attr:`CommitFact.told` at that time."""

    def repeats(self, other: Stall) -> bool:
        """Whether this is the same standstill as that one: by the same rank, at the same step.

        If steps are not known, it is the same if no commit was told of since.
        """
        if self.step != other.step or (self.step is None and self.told != other.told):
            return False
        shared = {*self.ranks, *self.slots} & {*other.ranks, *other.slots}
        return bool(shared) or not (self.ranks or other.ranks)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What the ranks of a world were asked, since they had stopped to commit."""

    asked: float
    """When."""
    ranks: tuple[RankStanding, ...]
    """By rank."""
    step: int | None = None
    """As :attr:`Stall.step` has it."""
    acted: float | None = None
    """When ranks were stopped because of it; None: none was."""
    quiet: bool = False
    """Nothing of it is in the log."""
    proves: bool = False
    """A rank has not moved since the inquiry before: it waits in the same collective, is stopped or does not answer."""
    early: bool = False
    """As :attr:`AskRanks.early` has it."""
    repeated: bool = False
    """All have answered, and the same as in the inquiry before."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranks of a world that do not do what the others do: :mod:`.difference`."""

    what: str
    """What differs: the global step of a commit, or what ranks have begun by then."""
    step: int | None
    """Global step of that commit, the greatest of all ranks."""
    ranks: tuple[int, ...]
    """Those at fault, as numbers of the world. Empty: nobody, as far as can be known."""
    rank_ids: tuple[str, ...]
    slots: tuple[str, ...]
    """Likewise, as names of places."""
    why: str
    """For people, with the ranks' names."""

    def repeats(self, other: Difference) -> bool:
        """Whether this is the same difference as that one: of the same kind, by the same rank."""
        shared = {*self.ranks, *self.slots} & {*other.ranks, *other.slots}
        return self.what == other.what and (bool(shared) or not (self.ranks or other.ranks))


class LeadershipState(StrEnum):
    """How this launcher stands to other launchers of the same run."""

    HELD = "held"
    """The run is this launcher's."""
    ENDING = "ending"
    """This launcher is being taken; another one will go on."""
    LOST = "lost"
    """Another one has gone on already: hands off."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why wanted workers do not come."""

    words: str
    """For people, with a remedy."""
    hopeless: bool = False
    """Waiting will not help."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Ranks of a world whose training has ended, at least one, and the others."""

    ended: tuple[tuple[int, int | None], ...]
    """By rank, each with its step, as far as it has one."""
    training: tuple[int, ...]
    """The other ranks."""
    step: int | None = None
    """That rank 0 has committed last in this world, as far as it has told."""

    @property
    def together(self) -> bool:
        """All have, at the same step."""
        return not self.training and len({step for _, step in self.ended}) == 1


@dataclass(frozen=True, slots=True)
class PauseFact:
    """A pause that is asked for."""

    words: str
    """For people: by whom, and since when."""
    age: float = 0.0
    """Seconds since the run is paused."""


@dataclass(frozen=True, slots=True)
class Facts:
    """How things stand at one moment; how long they have stood so is in :class:`Clocks`."""

    wanted: int
    """Workers asked for, without those that join by hand."""
    workers: tuple[WorkerFact, ...]
    """In the order of their arrival."""
    session: SessionFact | None = None
    trained: bool = False
    """Whether a world has ever been complete."""
    rank_failures: int = 0
    """Ranks that ended by themselves with another code than 0, over the whole run."""
    forced_resets: int = 0
    """Worlds that were ended by a loss or a failure, over the whole run."""
    cancel: str | None = None
    """Why somebody asked for the end."""
    lease_age: float | None = None
    """Since the last renewal; None where there are no leases."""
    watched: bool = True
    """Whether anybody has watched the run since its last claim."""
    leadership: LeadershipState = LeadershipState.HELD
    refusal: Refusal | None = None
    refused_sizes: frozenset[int] = frozenset()
    """Ranks of worlds in which the script fails at once, though it has worked with others."""
    handover_open: bool = False
    """A notice wants a durable checkpoint, and none yet holds the state that there was when it came."""
    heard: Mapping[str, float] = field(default_factory=dict)
    """When each worker's agent was heard last, by worker."""
    commits: CommitFact | None = None
    """None: there is no world."""
    excused: float = -math.inf
    """Until when a lack of commits is explained: ranks were busy, or have told when asked that they commit."""
    inquiry: Inquiry | None = None
    """The newest in the present world."""
    stalls: tuple[Stall, ...] = ()
    """Standstills that were acted upon, over the whole run."""
    leases: tuple[Lease, ...] = ()
    """Shards that ranks of the present world have got for some time."""
    difference: Difference | None = None
    """That of the present world, if one lasts and was not acted upon."""
    differences: tuple[Difference, ...] = ()
    """Those that were acted upon, over the whole run."""
    leave_time: float | None = None
    """Seconds that ranks need to leave a world, at most, as measured in this run; None: not known."""
    ending: Ending | None = None
    """Ranks of a world that trains, which wait for the end of the others' training."""
    ended: Ending | None = None
    """Ranks of a world that is over whose training had ended, or that ended with code 0."""
    all_run: bool = False
    """While a world forms: all its ranks run."""
    over_budget: str | None = None
    """Why the run may cost nothing more: :func:`.deadline.over_budget`."""
    out_of_memory: str | None = None
    """Why a worker that ran out of memory gets no more: :class:`.memory.Refused`."""
    starved: bool = False
    """A rank has ended for want of memory since the last world was complete, and its worker gets more."""
    is_consequence: bool = False
    """All ranks that have failed since the last world was complete say that a peer is gone."""
    pause: PauseFact | None = None
    """None: nobody has asked for one, or somebody has resumed the run."""
    stands: bool = False
    """Ranks wait at a commit that is durable, because of :class:`StopTraining`."""

    @property
    def has_world(self) -> bool:
        """Whether ranks train, or are about to."""
        return self.session is not None and self.session.state not in (SessionState.WAITING, SessionState.ENDED)

    @property
    def may_end(self) -> bool:
        """Whether ranks that wait for the end of the others' training go on: all have ended, or their world is over.

        Agents report in any order. A rank may have ended before another's report that it is connected is here.
        """
        if self.ending is not None:
            return self.ending.together
        if (session := self.session) is None or not (session.world and self.all_run):
            return True
        return (session.state, session.stage) != (SessionState.FORMING, Stage.CONNECTING)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Since when what lasts has lasted; kept by :func:`.observe.observe`. None: it does not last now."""

    launched: float
    """When the launcher started, or a pause ended."""
    short_since: float | None = None
    """Since when fewer ranks than the minimum train, once trained."""
    gathering_since: float | None = None
    """Since when the minimum of workers has been ready for the next session."""
    hopeless_since: float | None = None
    """Since when workers are refused in a way that waiting does not help."""
    forming_since: float | None = None
    """Since when the present world is forming, at the present stage."""
    world: int = 0
    """Which that is: see :attr:`SessionFact.world <elastic_runtime.engines.base.SessionFact.world>`."""
    stage: Stage = Stage.CONNECTING
    """Stage of that world."""
    finishing_since: float | None = None
    """Since when a rank of the world has ended with code 0, and others have not ended."""
    done_since: float | None = None
    """Since when all ranks have ended their training, and none has ended with code 0."""
    ending_since: float | None = None
    """Since when some ranks have ended their training, and others have not."""
    starting_since: float | None = None
    """Since when the present first one of :attr:`SessionFact.starting` is that."""
    starting: tuple[str, ...] = ()
    """Its rank id."""
    silent_since: float | None = None
    """Since when the present ones of :attr:`silent` are."""
    silent: tuple[str, ...] = ()
    """Workers that say nothing while their world stands: :func:`.silence.silent`."""
    pausing_since: float | None = None
    """Since when a pause is asked for that waits for the session."""


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """Settings that do not change during a run."""

    workers: WorkersSpec
    recovery: RecoverySpec
    timing: Timing
    refused_timeout: float = 60.0
    """Seconds for which workers have to be refused without hope until the run fails; a registry may hiccup."""
    restart_grace: float = 25.0
    """Seconds in which ranks that are restarted for each world write their checkpoint: ``restart.grace``."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Open a session of the run's engine with these ranks, from the newest durable checkpoint."""

    ranks: tuple[str, ...]
    minimum: int
    """Fewest ranks of a world."""


@dataclass(frozen=True, slots=True)
class ListRanks:
    """Have the session use these ranks from its next reset on, which comes with the ranks' next commit."""

    ranks: tuple[str, ...]
    minimum: int


@dataclass(frozen=True, slots=True)
class GiveUpWorker:
    """Mark a worker lost, whose connection is still there."""

    name: str
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class ReformWorld:
    """Have another world formed, of those ranks of the present one that are there; the others are stopped.

    If the present one is complete, only ranks that are not ready for the next are stopped.
    """


@dataclass(frozen=True, slots=True)
class AskRanks:
    """Ask all ranks of the world where they stand, and have their stacks in the log."""

    reason: str
    """For people."""
    quiet: bool = False
    """Have nothing in the log: it is not known whether anything is wrong."""
    early: bool = False
    """To find ranks that wait for each other, long before a standstill. Only the early inquiry before counts."""


@dataclass(frozen=True, slots=True)
class EndStandstill:
    """Stop the ranks at fault, so that the others form another world; or have all form another, if nobody is."""

    stall: Stall
    rank_ids: tuple[str, ...]
    """Those at fault."""
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class EndDifference:
    """The same because ranks do not do the same."""

    difference: Difference
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Forget the session, which has ended or is of no use any more; its remaining ranks are stopped."""


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """Tell a leaving worker that it is not needed any more."""

    name: str


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run with this phase."""

    phase: Phase
    failure: FailureKind | None = None


@dataclass(frozen=True, slots=True)
class StepDown:
    """End this launcher, and leave the run to another one."""

    handover: bool
    """Have a durable checkpoint written first."""


@dataclass(frozen=True, slots=True)
class RefuseSize:
    """Have no further world of so many ranks, unless somebody asks for it anew: the script fails in it at once."""

    size: int
    before: int
    """Ranks of the last world that worked, to which to go back."""


@dataclass(frozen=True, slots=True)
class HoldSize:
    """Have no more workers than these: no rank of another can join the world."""

    workers: int


@dataclass(frozen=True, slots=True)
class StopTraining:
    """Have all ranks stop at their next commit, or stay where they wait, and one of them make it durable."""


@dataclass(frozen=True, slots=True)
class EndWorkers:
    """Have no worker, until somebody asks for some."""


@dataclass(frozen=True, slots=True)
class RefusePause:
    """Forget the pause that is asked for; the run goes on."""

    reason: str
    """For people."""


Action = (
    OpenSession
    | ListRanks
    | GiveUpWorker
    | ReformWorld
    | AskRanks
    | EndStandstill
    | EndDifference
    | RefuseSize
    | HoldSize
    | CloseSession
    | ReleaseWorker
    | Finish
    | StepDown
    | StopTraining
    | EndWorkers
    | RefusePause
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision: what to do now, and the run's state."""

    actions: tuple[Action, ...]
    phase: Phase
    reason: str
    """For people: why."""
