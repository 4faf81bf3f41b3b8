"""How a run is doing: the one document that the launcher writes and the only one that Airflow reads.

Everything in it is bounded (the constants below) but the workers that are present, so that it fits a Kubernetes
ConfigMap (1 MiB) with a thousand of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from elastic_runtime.errors import FailureKind
from elastic_runtime.marks import SPARSE, VERSION
from elastic_runtime.run.deadline import DeadlineStatus
from elastic_runtime.run.status_failure import FirstFailure
from elastic_runtime.run.status_figures import GpuFigures, Hardware
from elastic_runtime.run.status_progress import Pace, Progress

STATUS_VERSION = 1
"""Another one with each change of the fields, or of the members of an enum."""
MAX_EVENTS = 200
MAX_HISTORY = 500
MAX_PAST_WORKERS = 50
"""Workers that are gone and still listed."""
MAX_WORKER_SECONDS = 1000
"""Workers whose seconds are kept one by one."""
MAX_USAGE = 50
"""Kinds of machines whose seconds are told apart."""
MAX_MACHINE_NAME = 63
"""Characters of a capacity or instance type, as of a label's value."""
MAX_SIZES_ASKED = 100
MAX_MEMORY = 50
"""Times that workers got more memory."""
MAX_PROFILES = 64
MAX_METRICS = 100
MAX_METRIC_NAME = 100
"""Characters."""
MAX_GPUS = 256
"""GPUs of all workers that are told of one by one; of those beyond, there is the worker's sum in its curve."""
MAX_GPU_NAME = 63
"""Characters."""
MAX_MESSAGE = 400
"""Characters of an event's message."""
MAX_REASON = 4000
"""Characters of :attr:`Status.reason`, which names the rank that failed first."""
EARLIER_WORKERS = "(earlier)"
"""Stands for many in :attr:`Status.worker_seconds`; no worker is called so."""


def shortened(text: str, limit: int) -> str:
    """At most so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class Phase(StrEnum):
    """Phase of a run. The last ones are final: see :attr:`final`."""

    PENDING = "pending"
    """Created; the launcher has not spoken yet."""
    STARTING = "starting"
    """The launcher waits for the first workers."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Fewer workers than the minimum; waiting, holding no step back."""
    PAUSED = "paused"
    """By request, with no worker; see :attr:`Status.pause`."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Whether the run is over."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class WorkerState(StrEnum):
    """State of one worker, in the order of its life."""

    STARTING = "starting"
    """Its agent is here; its ranks cannot start yet."""
    READY = "ready"
    """Could train; is not in the world (yet)."""
    TRAINING = "training"
    LEAVING = "leaving"
    """Noticed, still working."""
    LEFT = "left"
    """Gone after a notice or a scale-in."""
    LOST = "lost"
    """Gone without a word."""

    @property
    def gone(self) -> bool:
        """Whether a worker in this state is not here any more."""
        return self in (WorkerState.LEFT, WorkerState.LOST)


class EventKind(StrEnum):
    """Kinds of events in a run's status."""

    STARTED = "started"
    """The first world trains."""
    SIZE_ASKED = "size_asked"
    """Somebody asked for another number of workers, or the deadline did."""
    SCALED = "scaled"
    """A new world trains; ``world_size`` tells how large."""
    JOINED = "joined"
    """A worker has joined by hand."""
    NOTICE = "notice"
    """A worker will be taken."""
    LEFT = "left"
    """A worker left in order."""
    LOST = "lost"
    """A worker vanished."""
    RANK_FAILED = "rank_failed"
    """A rank ended by itself with a code other than 0, or by a signal."""
    HANDOVER = "handover"
    """A durable checkpoint was written because of a notice."""
    CHECKPOINT = "checkpoint"
    """A durable checkpoint was written."""
    CHECKPOINT_SKIPPED = "checkpoint_skipped"
    """A torn or altered checkpoint was passed over for the one before."""
    SUSPENDED = "suspended"
    PAUSED = "paused"
    """No worker is asked for any more until somebody resumes the run."""
    RESUMED = "resumed"
    RESTARTED = "restarted"
    """All ranks were lost; training begins again, from the newest durable checkpoint where one is known."""
    STACKS = "stacks"
    """Somebody has asked where the ranks stand; it is in the log."""
    STANDSTILL = "standstill"
    """No rank commits any more; then: which rank is at fault, and is replaced."""
    STRAGGLER = "straggler"
    """A worker holds the others back, and is replaced if that is asked for."""
    MEMORY = "memory"
    """A worker ran out of memory, and gets more."""
    RANKS_DIFFER = "ranks_differ"
    """A rank does not do what the others do: which, and in what it differs. It is replaced."""
    WARNING = "warning"
    """Problem of the script that costs steps or may fail. The message has the remedy."""
    DEADLINE = "deadline"
    """What stands in the way of deadline or budget has changed."""
    FINISHED = "finished"
    """Final: succeeded or failed."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, in the order of happening."""

    time: datetime
    kind: EventKind
    message: str
    """For people."""
    worker: str | None = None
    step: int | None = None
    """Global step of the checkpoint that it is about; else the one that was last heard of when it happened."""
    world_size: int | None = None
    """Ranks, where the event is about the world."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker, present or past."""

    name: str
    node: str
    state: WorkerState
    since: datetime
    """Start of this state."""
    slots: int
    ranks: tuple[int, ...] = ()
    """Ranks of the current world that run here."""
    pids: tuple[int, ...] = ()
    """Process ids of the agent (first) and of its ranks, in the worker's own pid namespace."""
    seconds: float = 0.0
    """Since the agent arrived: what a price per hour applies to."""
    cpu_percent: float | None = None
    """Percent of one core over the last heartbeat, agent and ranks together."""
    memory_bytes: int | None = None
    """Resident, agent and ranks together."""
    memory_limit_bytes: int | None = field(default=None, metadata=SPARSE)
    """What it may use at most. None: not known, or not limited."""
    capacity_type: str | None = None
    instance_type: str | None = None
    receive_bytes_per_second: float | None = field(default=None, metadata=SPARSE)
    """Rate of the worker's interfaces but the loopback, over the last heartbeat; on one machine, whose workers share
    them, of the machine's. None: not known."""
    transmit_bytes_per_second: float | None = field(default=None, metadata=SPARSE)
    """Likewise."""
    step_seconds: float | None = field(default=None, metadata=SPARSE)
    """A step, of its slowest rank's own work, apart from waiting for others, over ``recovery.window``. None: not
    known, as with one worker."""
    step_skew: float | None = field(default=None, metadata=SPARSE)
    """Times as long as the ranks of the other workers, by their median."""
    gpus: tuple[GpuFigures, ...] = field(default=(), metadata=SPARSE)
    """The worker's own, at its last heartbeat; none where no vendor's library tells of any."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Time of all workers, present and past, on machines of one kind: what a price per hour applies to."""

    capacity_type: str | None = None
    """``spot``, ``on-demand``, or what else the cloud calls it; None: not known."""
    instance_type: str | None = None
    """None: not known."""
    seconds: float = 0.0
    """From the arrival of an agent to its end, summed."""
    idle_seconds: float = 0.0
    """Seconds of these without a rank in a world that trains."""


@dataclass(frozen=True, slots=True)
class World:
    """One generation: ranks that trained together, from one reset to the next."""

    time: datetime
    """At which all its ranks were connected."""
    size: int
    """Ranks; 0 while no world trains."""
    generation: int
    step: int | None = None
    """Global step at which it began, as far as known."""


@dataclass(frozen=True, slots=True)
class SizeAsked:
    """So many workers are asked for, from then on."""

    time: datetime
    workers: int


@dataclass(frozen=True, slots=True)
class MemoryGiven:
    """More memory, for a worker that ran out of it and for all that start later."""

    time: datetime
    worker: str
    before: int
    """Bytes of its limit."""
    after: int
    step: int | None = None
    """Newest global step at that time; None: not known."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that was asked for, and that nobody has ended."""

    request: str
    """Name of the request."""
    by: str = ""
    """Who has asked, for people; empty: not known."""
    workers: int = 0
    """Workers asked for before, with which the run goes on unless somebody names another number."""
    since: datetime | None = None
    """Since when the run is paused; None: it still trains, up to a commit that is durable."""
    refused: str = ""
    """Why the run was not paused, and goes on; empty: it is, or will be."""


@dataclass(frozen=True, slots=True)
class Series:
    """A value over steps, in columns of one length: see :mod:`elastic_runtime.launcher.record.series`."""

    stride: int = 1
    """Steps in which one point is kept."""
    steps: tuple[int, ...] = ()
    """Ascending."""
    times: tuple[float, ...] = ()
    """Seconds since 1970 (UTC), never descending."""
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A durable checkpoint, complete and published."""

    uri: str
    step: int
    time: datetime


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files that rank 0's script has left in the run's store."""

    uri: str
    """URI of their folder."""
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Status:
    """State of a run, as its launcher publishes it."""

    run: str
    uid: str
    phase: Phase
    reason: str
    """For people: why this phase."""
    updated: datetime
    started: datetime | None = None
    """When the first world was complete."""
    finished: datetime | None = None
    failure: FailureKind | None = None
    """Set exactly when the phase is ``failed``."""
    exit_code: int | None = None
    """With ``rank_failed``: of :attr:`first_failure`; minus a signal's number. None when it is not known."""
    first_failure: FirstFailure | None = None
    """First of the ranks that failed by themselves since the last world was complete. None: none did, or the run has
    succeeded for all that."""
    world_size: int = 0
    """Ranks that train together now."""
    target_size: int = 0
    """Workers asked for."""
    generation: int = 0
    """Count of worlds so far."""
    step: int | None = None
    """Newest global step reported; None: none was, so it is not known."""
    progress: Progress | None = None
    """None: the script has told of no step, or not how many it has."""
    paces: tuple[Pace, ...] = ()
    """By size; of more than :data:`.status_progress.MAX_PACES` sizes, those that trained last."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Newest value of each metric reported."""
    series: Mapping[str, Series] = field(default_factory=dict)
    """Each metric over steps, if the step of a report is known: as told by it, else the newest that was heard of."""
    throughput: Series = Series()
    """Steps a second."""
    sample_throughput: Series = Series()
    """Samples a second, over all ranks; empty where no rank has told how many a step has."""
    hardware: Mapping[str, Hardware] = field(default_factory=dict)
    """Figures over time by the name of the worker, of those that are present and, as far as there is room, past."""
    lost_seconds: Mapping[str, float] = field(default_factory=dict)
    """By :class:`.status_figures.LostTime`, as of :attr:`updated`; a cause that is left out is not known."""
    workers: tuple[WorkerStatus, ...] = ()
    events: tuple[Event, ...] = ()
    """The newest :data:`MAX_EVENTS`."""
    checkpoint: Checkpoint | None = None
    """The newest."""
    returned: str | None = None
    """JSON of what the function of rank 0 has returned; None: nothing, or the script is no function."""
    outputs: Outputs | None = None
    """Outputs of rank 0 besides its checkpoints. None: nothing."""
    history: tuple[World, ...] = ()
    """The newest :data:`MAX_HISTORY`."""
    asked: tuple[SizeAsked, ...] = ()
    """The newest :data:`MAX_SIZES_ASKED`; the last is :attr:`target_size`."""
    timeline: str | None = None
    """URI of Horovod's timeline of all worlds, once the run is over; None: not asked for, or not to be had."""
    profiles: tuple[str, ...] = ()
    """URIs of what torch's profiler has seen, one a rank."""
    pause: Pause | None = field(default=None, metadata=SPARSE)
    """None: nobody has asked for one, or the last one is over."""
    memory: tuple[MemoryGiven, ...] = field(default=(), metadata=SPARSE)
    """The newest :data:`MAX_MEMORY` times that workers got more (``recovery.grow_memory``)."""
    plan_window: datetime | None = None
    """When that window of the size plan began that was carried out last, or the time outside of all."""
    deadline: DeadlineStatus | None = None
    """None: the run has neither deadline nor budget."""
    worker_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each worker, past or present, was here. Of more than :data:`MAX_WORKER_SECONDS`, the earliest are
    summed under :data:`EARLIER_WORKERS`."""
    usage: tuple[Usage, ...] = ()
    """By kind of machine. Of more than :data:`MAX_USAGE` kinds, the rest is summed as not known."""
    starts: int = 0
    """Times that fresh processes of the script were started for a world, by engines that restart ranks."""
    rank_failures: int = 0
    """Ranks that ended by themselves with another code than 0."""
    forced_resets: int = 0
    """Worlds that were ended by a loss or a failure."""
    version: int = field(default=STATUS_VERSION, metadata=VERSION)

    @property
    def tells_no_step(self) -> bool:
        """Whether the run has trained and its script has told of no step: then how far it is, is unknown."""
        return self.started is not None and self.step is None
