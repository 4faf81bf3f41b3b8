"""Spec of a run: the document that Airflow passes to the launcher.

It is written once, when the run is created, and never changed; the wanted size, which does change, lives beside it
(a file on this machine, the worker set's ``scale`` on Kubernetes).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from typing import Self

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.marks import SPARSE, VERSION
from elastic_runtime.run.deadline import DeadlineSpec
from elastic_runtime.run.join import JoinSpec
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.pool import PoolSpec

SPEC_VERSION = 1
"""Another one with each change of the fields: a runtime that does not know one would train another run."""
LOG_LIMIT = 1024**3
"""Bytes."""


class RecoveryMode(StrEnum):
    """How a run goes on when workers are missing."""

    ELASTIC = "elastic"
    """Between ``workers.minimum`` and ``workers.maximum`` with whatever is there."""
    FIXED = "fixed"
    """Only at exactly the wanted size; paused, holding its state, until that many are back."""


class Stragglers(StrEnum):
    """What is done about workers that hold the others back: :mod:`elastic_runtime.launcher.decision.stragglers`."""

    OFF = "off"
    """Nothing is measured."""
    REPORT = "report"
    """They are told of."""
    REPLACE = "replace"
    """They are told of, and leave, for another to come, a few times at most."""


class NoticeService(StrEnum):
    """Which metadata service the agents ask whether their machine will be taken. SIGTERM is heeded in any case."""

    AUTO = "auto"
    """On Kubernetes the one that is found, if any; on this machine none."""
    NONE = "none"
    AWS = "aws"
    """EC2: spot interruptions."""
    AWS_REBALANCE = "aws-rebalance"
    """EC2: spot interruptions, and recommendations to rebalance."""
    GCP = "gcp"
    AZURE = "azure"
    ALIBABA = "alibaba"


@dataclass(frozen=True, slots=True)
class WorkersSpec:
    """How many workers; every worker has the same number of slots."""

    minimum: int = 1
    """Fewest workers that train. Below it the run is suspended."""
    start: int = 1
    """Wanted workers until somebody asks for another number."""
    maximum: int = 1
    """Most workers. Requests for more are refused."""
    slots: int = 1
    """Ranks per worker, usually one a GPU."""

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise InvalidSettings("workers.min", f"{self.minimum} is less than 1", "Write 1 or more")
        if self.slots < 1:
            raise InvalidSettings("workers.slots", f"{self.slots} is less than 1", "Write 1 or more")
        sizes = (("workers.min", self.minimum), ("workers.start", self.start), ("workers.max", self.maximum))
        for (low, few), (high, many) in combinations(sizes, 2):
            if few > many:
                raise InvalidSettings(low, f"{few} is more than {high}, which is {many}", "Write min <= start <= max")


MAX_PLAN_WINDOWS = 100
"""Windows of a size plan."""
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]|24:00")


def minutes_of(time: str) -> int:
    """Return the minutes since midnight of a time of day. Raise InvalidSettings."""
    if not _TIME.fullmatch(str(time)):
        raise InvalidSettings("size_plan.windows", f"{time!r} is not a time of day", 'Write it as in "22:00"')
    hours, minutes = time.split(":")
    return 60 * int(hours) + int(minutes)


@dataclass(frozen=True, slots=True)
class PlanWindow:
    """A time of the day, on some days of the week, in which a run has another size."""

    workers: int
    start: str
    """``HH:MM``."""
    end: str
    """``HH:MM``; at or before ``start``: of the next day."""
    days: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    """On which it begins; 1 is Monday."""

    def __post_init__(self) -> None:
        if minutes_of(self.start) == minutes_of(self.end) or self.start == "24:00":
            raise InvalidSettings(
                "size_plan.windows", f"{self.start} to {self.end} is empty", 'Write a whole day as "00:00" to "24:00"'
            )
        if not self.days or not set(self.days) <= set(range(1, 8)):
            raise InvalidSettings("size_plan.windows.days", f"{self.days} are not weekdays", "Write 1 (Monday) to 7")


@dataclass(frozen=True, slots=True)
class SizePlan:
    """Number of workers by time of day and week: see :mod:`elastic_runtime.launcher.decision.sizing`."""

    timezone: str
    """Name in the IANA database."""
    otherwise: int
    """Workers outside of all windows."""
    windows: tuple[PlanWindow, ...]
    """Windows. If several are open, the first counts."""

    def __post_init__(self) -> None:
        if not 0 < len(self.windows) <= MAX_PLAN_WINDOWS:
            problem = f"there are {len(self.windows)}, counting each time of day that a cron names"
            raise InvalidSettings("size_plan.windows", problem, f"Write 1 to {MAX_PLAN_WINDOWS}")

    def check(self, bounds: WorkersSpec) -> None:
        """Raises InvalidSettings when a size is out of bounds."""
        for workers in (self.otherwise, *(window.workers for window in self.windows)):
            if not bounds.minimum <= workers <= bounds.maximum:
                raise InvalidSettings(
                    "size_plan",
                    f"{workers} workers are outside the training's bounds {bounds.minimum} to {bounds.maximum}",
                    "Write sizes within workers.min and workers.max, or widen these",
                )


MAX_SHIPPED = 500
"""Files that travel with a run."""
MAX_PACKED = 256 * 1024
"""Bytes of them, compressed. A document of Kubernetes holds 1 MiB."""
SHIP_LESS = "Ship fewer files, put them into the workers' image, or read what is large from a store"
_PACKED_TEXT = (MAX_PACKED + 2) // 3 * 4


@dataclass(frozen=True, slots=True)
class Shipment:
    """Files that travel with a run to its workers, as :mod:`elastic_runtime.run.shipment` packs and reads them."""

    digest: str
    """SHA-256 of what is compressed, hexadecimal."""
    files: int
    """How many there are."""
    packed: str = ""
    """Base64; empty in documents beside which it is kept."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.digest):
            raise InvalidSettings(
                "scripts", "their digest is not a SHA-256", "Have elastic_runtime.run.shipment pack them"
            )
        if not 0 < self.files <= MAX_SHIPPED:
            raise InvalidSettings("scripts", f"there are not 1 to {MAX_SHIPPED} files", SHIP_LESS)
        if len(self.packed) > _PACKED_TEXT:
            problem = f"compressed they are more than {MAX_PACKED // 1024} KiB, and travel in the run's documents"
            raise InvalidSettings("scripts", problem, SHIP_LESS)

    def slip(self) -> Self:
        """Return the shipment without its files, which it still identifies."""
        return replace(self, packed="")


LEAST_WINDOW, LONGEST_WINDOW = 5.0, 86400.0
"""Bounds of :attr:`RecoverySpec.window`."""
LEAST_FACTOR, MOST_FACTOR = 1.1, 100.0
"""Bounds of :attr:`RecoverySpec.factor`. Less is what ranks differ by chance."""
LEAST_GROWTH, MOST_GROWTH = 1.1, 10.0
"""Bounds of :attr:`RecoverySpec.grow_memory`."""
MOST_MEMORY = 2**50
"""Bytes."""
MOST_TOLD = 30
"""Messages of a rank in a window, of how it has spent its time."""


@dataclass(frozen=True, slots=True)
class RecoverySpec:
    """Settings for lost workers and failing ranks. Times are in seconds."""

    mode: RecoveryMode = RecoveryMode.ELASTIC
    max_wait: float = 1800.0
    """Longest time below the minimum, before the run fails with ``max_wait_exceeded``."""
    start_timeout: float = 600.0
    """Longest time from the launcher's start to the first world, before it fails with ``start_timeout``."""
    max_pause: float = 7 * 86400.0
    """Longest pause, before the run fails with ``max_pause_exceeded``; 0: no limit."""
    reset_limit: int | None = None
    """Most resets forced by lost workers or failed ranks (resizes do not count); None: no limit."""
    rank_failures: int = 10
    """Most ranks that may end by themselves with a non-zero code, over the whole run."""
    backoff: float = 1.0
    """Delay before a failed slot is used again; doubles with each failure of that slot."""
    backoff_maximum: float = 60.0
    """Upper bound of that delay, in seconds."""
    backoff_forgiven: float = 300.0
    """A slot whose rank has run for so long, or that has not failed for so long, is forgiven its earlier failures."""
    notices: NoticeService = NoticeService.AUTO
    """Where the agents listen for reclaim notices, beside SIGTERM."""
    standstill: float | None = None
    """Longest time without a commit of a world whose ranks have a state, before the rank at fault is replaced. None:
    :data:`.LEAST_STANDSTILL`, or :data:`.STANDSTILL_INTERVALS` times the run's usual interval if that is longer; 0: no
    limit."""
    stragglers: Stragglers = Stragglers.REPORT
    """What is done about a worker whose own work takes :attr:`factor` times as long as the others', for :attr:`window`
    seconds."""
    factor: float = 1.5
    window: float = 300.0
    compare: bool = True
    """Whether a rank is replaced that has not begun the same as the others by a commit."""
    grow_memory: float | None = None
    """Times its memory limit that a worker gets when it has run out of memory. None: its limit stays."""
    up_to: int | None = None
    """Bytes that it gets at most. Set exactly when :attr:`grow_memory` is."""

    def __post_init__(self) -> None:
        self._check_memory()
        if self.standstill is not None and self.standstill < 0:
            remedy = "Write seconds, or 0 for no limit"
            raise InvalidSettings("recovery.standstill", f"{self.standstill:g} s is less than 0", remedy)
        if not LEAST_FACTOR <= self.factor <= MOST_FACTOR:
            remedy = f"Write {LEAST_FACTOR:g} to {MOST_FACTOR:g}, as in factor=1.5"
            raise InvalidSettings("recovery.factor", f"{self.factor:g} is not within the bounds", remedy)
        if not LEAST_WINDOW <= self.window <= LONGEST_WINDOW:
            remedy = f"Write {LEAST_WINDOW:.0f} s to a day"
            raise InvalidSettings("recovery.window", f"{self.window:g} s is not within the bounds", remedy)
        if self.stragglers is Stragglers.REPLACE and self.mode is RecoveryMode.FIXED:
            problem = 'with mode="fixed", the others would wait for the worker that takes its place'
            raise InvalidSettings("recovery.stragglers", problem, 'Write "report", or mode="elastic"')

    def _check_memory(self) -> None:
        if (self.grow_memory is None) != (self.up_to is None):
            lacking = "grow_memory" if self.grow_memory is None else "up_to"
            remedy = 'Write both, as in grow_memory=1.5, up_to="64Gi"'
            raise InvalidSettings(f"recovery.{lacking}", "it is not set, and the other of the two is", remedy)
        if self.grow_memory is not None and not LEAST_GROWTH <= self.grow_memory <= MOST_GROWTH:
            remedy = f"Write {LEAST_GROWTH:g} to {MOST_GROWTH:g}, as in grow_memory=1.5"
            raise InvalidSettings("recovery.grow_memory", f"{self.grow_memory:g} is not within the bounds", remedy)
        if self.up_to is not None and not 0 < self.up_to <= MOST_MEMORY:
            problem = f"{self.up_to} bytes are not within the bounds"
            raise InvalidSettings("recovery.up_to", problem, 'Write an amount of memory, as in "64Gi"')

    @property
    def tells_every(self) -> float | None:
        """Return the seconds between two messages of a rank, of how it has spent its time. None: it sends none."""
        return None if self.stragglers is Stragglers.OFF else self.window / MOST_TOLD


RESTART_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals that a script can handle, and that nothing else here uses."""
RESTARTING = ("horovodrun", "torchrun")
"""Engines that start the script again for each world."""
LONGEST_GRACE = 600.0
"""Seconds that a script may have; no cloud announces that it takes a machine so long ahead."""


@dataclass(frozen=True, slots=True)
class RestartSpec:
    """How processes are ended for the next world's, with an engine whose ranks do not go from world to world."""

    signal: str = "SIGTERM"
    """One of :data:`RESTART_SIGNALS`, upon which a script writes its checkpoint and ends."""
    grace: float = 25.0
    """Seconds that it has, before it is killed. Less than a worker has to leave (:attr:`Timing.leave_grace`)."""

    def __post_init__(self) -> None:
        if self.signal not in RESTART_SIGNALS:
            remedy = f"Write one of {', '.join(RESTART_SIGNALS)}"
            raise InvalidSettings("restart.signal", f"{self.signal!r} is not a signal that ranks can handle", remedy)
        if not 0 <= self.grace <= LONGEST_GRACE:
            remedy = f"Write 0 to {LONGEST_GRACE:.0f} s"
            raise InvalidSettings("restart.grace", f"{self.grace:g} s is not within the bounds", remedy)


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """Location, interval and number of durable checkpoints."""

    uri: str
    """This run's own prefix in the store: ``file:///…`` or ``s3://…``."""
    every: float = 60.0
    """Seconds between durable checkpoints; one is also written on a notice and on the last commit."""
    keep: int = 2
    """How many complete checkpoints to keep."""
    resume: bool = True
    """Start from the newest valid checkpoint under ``uri``, if there is one. False: only from one with this fence, that
    this run wrote before it lost all of its ranks."""
    fence: int = 1
    """Fencing token: a writer with a lower one than the store has seen cannot publish. Seconds since the epoch at
    which the run was created will do: later tries have larger ones."""
    owner: str = ""
    """Run that writes there, as :data:`~elastic_runtime.checkpoint.fence.OWNER` has it: another run with the same fence
    is refused. Empty: not known, and compared with nobody."""


@dataclass(frozen=True, slots=True)
class JupyterSpec:
    """A pod beside the workers."""

    secret: str
    """``NAME/KEY`` of the Secret that holds the token."""
    port: int = 8888
    memory: str = "2Gi"
    """That it may use, and has for sure, as Kubernetes writes it."""

    def __post_init__(self) -> None:
        name, _, key = self.secret.partition("/")
        if not (name and key):
            raise InvalidSettings(
                "jupyter.token", f"{self.secret!r} is not NAME/KEY", 'Write "NAME/KEY" of a Secret that holds it'
            )
        if not 1024 <= self.port <= 65535:
            problem = f"{self.port} is not a port that a program without rights can have"
            raise InvalidSettings("jupyter.port", problem, "Write 1024 to 65535")


# The file with the hosts of the present world, for ``mpirun`` and DeepSpeed: where it may be.

HOSTFILE = "/etc/mpi/hostfile"
"""Where operators for MPI on Kubernetes have it."""
_LONGEST_PATH = 255
"""Characters of its path."""
_NOT_IN = ("/dev", "/proc", "/run/elastic-training", "/sys")


def check_hostfile(path: object) -> None:
    """Check the path of a hostfile in a worker. Raise InvalidSettings."""
    remedy = f'Write the absolute path of a file in the workers, as in "{HOSTFILE}"'
    if not isinstance(path, str) or not path.startswith("/") or len(path) > _LONGEST_PATH or not path.isprintable():
        problem = f"it is not an absolute path of at most {_LONGEST_PATH} printable characters"
        raise InvalidSettings("hostfile", problem, remedy)
    if posixpath.normpath(path) != path or path.startswith("//") or path == "/":
        raise InvalidSettings("hostfile", f"{path!r} has dots, doubled slashes, or a slash at its end", remedy)
    if any(f"{path}/".startswith(f"{folder}/") for folder in _NOT_IN):
        raise InvalidSettings("hostfile", f"{path} is the system's, or this package's own", remedy)


@dataclass(frozen=True, slots=True)
class Timing:
    """Times inside the runtime, in seconds. The defaults suit; tests shorten some."""

    heartbeat: float = 1.0
    """An agent sends one so often."""
    agent_silence: float = 10.0
    """An agent not heard of for so long, with its connection still open, is lost; after three heartbeats, if commits of
    its world have stopped at the same time."""
    stop_grace: float = 10.0
    """From SIGTERM to SIGKILL of a rank that has to end."""
    leave_grace: float = 30.0
    """How long a worker that is scaled in has to leave, before it is killed."""
    lease: float = 6 * 3600.0
    """A run whose lease nobody renewed for so long ends itself; 0: never."""
    unwatched: float = 900.0
    """The same for a run that nobody has begun to watch since it was claimed: its task may have been ended before a
    trigger ran, of which Airflow tells nobody. Counts only where ``lease`` does."""
    gather: float = 10.0
    """For which ranks that could train wait for all wanted workers, before they start as at least the minimum."""
    forming: float = 120.0
    """For which ranks that hold the state wait for the newcomers to their next world, before they go on without."""
    tick: float = 1.0
    """The launcher's loop runs at least so often, and at once on every change."""


def check_one_of(size_plan: object, deadline: object) -> None:
    """Raises InvalidSettings if there are both: each sets the size."""
    if size_plan is not None and deadline is not None:
        raise InvalidSettings("deadline", "there is a size_plan, too, and each sets the size", "Write one of the two")


def check_join(join: object, mode: str) -> None:
    """Raises InvalidSettings if workers may join a run whose world has exactly the size that is asked for."""
    if join is not None and mode == RecoveryMode.FIXED:
        problem = 'with recovery.mode="fixed", only the workers that are asked for can train'
        raise InvalidSettings("workers.join", problem, 'Leave it out, or write mode="elastic"')


def has_fixed_size(workers: WorkersSpec, recovery: RecoverySpec) -> bool:
    """Whether nobody can ask for another number of workers, and fewer do not train."""
    return recovery.mode is RecoveryMode.FIXED and workers.minimum == workers.maximum


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The specification of a training run."""

    name: str
    """Deterministic, from dag, run, task and map index: ``[a-z0-9]([-a-z0-9]*[a-z0-9])?``, at most 52 characters."""
    uid: str
    """Random, new with each creation: tells two incarnations of the same name apart."""
    command: tuple[str, ...]
    """The rank's command. ``python script.py …`` starts warm, anything else cold."""
    workers: WorkersSpec = field(default_factory=WorkersSpec)
    recovery: RecoverySpec = field(default_factory=RecoverySpec)
    checkpoint: CheckpointSpec | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Extra environment of every rank."""
    working_directory: str | None = None
    """Working directory of every rank. None: the agent's."""
    warm: bool = True
    """Keep a process in every worker that has imported what the engine's ranks need."""
    timing: Timing = field(default_factory=Timing)
    engine: str = "horovod"
    """Engine that makes the ranks a world: a name that :mod:`elastic_runtime.engines.registry` has where launcher and
    workers run."""
    log_limit: int = LOG_LIMIT
    """Bytes of the ranks' lines in the run's log, 1 GiB: of what comes later only the last lines are kept. On
    Kubernetes it counts for each launcher anew."""
    size_plan: SizePlan | None = None
    """When it is to have which size; None: ``workers.start`` until somebody asks for another."""
    deadline: DeadlineSpec | None = None
    """When it is to be done, and what it may cost. None: as ``workers`` and ``size_plan`` say."""
    scripts: Shipment | None = None
    """Files that every worker lays down before it starts a rank. The ranks' working directory, unless they have
    another, and on their PYTHONPATH."""
    observe: ObserveSpec = field(default_factory=ObserveSpec)
    """Observing besides the status."""
    hostfile: str | None = None
    """Path at which each worker keeps the hosts of the world (:func:`check_hostfile`); None: in a folder
    of its agent's own."""
    jupyter: JupyterSpec | None = None
    """Beside the workers, where these are pods."""
    restart: RestartSpec = field(default_factory=RestartSpec)
    """Settings of engines that restart their ranks: :data:`RESTARTING`."""
    join: JoinSpec | None = field(default=None, metadata=SPARSE)
    """Where machines may join by hand. None: they may not."""
    secrets: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """Secrets of the run besides those in :attr:`environment`. Both are plain text here, and are hidden in all texts of
    the run that are shown."""
    pool: PoolSpec | None = field(default=None, metadata=SPARSE)
    """The standing pool that it has its workers of; None: they are its own."""
    version: int = field(default=SPEC_VERSION, metadata=VERSION)

    @property
    def can_pause(self) -> bool:
        """Whether its state outlives its workers: in the checkpoint store, or in checkpoints of a restarted script."""
        return self.checkpoint is not None or self.engine in RESTARTING

    @property
    def join_address(self) -> str:
        """Return the address that is given for machines that join; empty: none is, or none may join."""
        return self.join.address if self.join else ""

    @property
    def fixed_size(self) -> bool:
        """Whether its world has one size, or none, whatever happens."""
        return has_fixed_size(self.workers, self.recovery) and self.size_plan is None

    def __post_init__(self) -> None:
        if not self.command:
            raise InvalidSettings(
                "command", "it is empty", 'Write the command of one rank, as in ["python", "train.py"]'
            )
        if self.size_plan:
            self.size_plan.check(self.workers)
        check_one_of(self.size_plan, self.deadline)
        check_join(self.join, self.recovery.mode)
        if self.pool and self.recovery.mode is RecoveryMode.FIXED and self.workers.minimum != self.workers.maximum:
            problem = 'with mode="fixed", a run in a pool cannot have fewer or more workers when others wish for them'
            raise InvalidSettings("recovery.mode", problem, "Write workers.min = workers.max, or leave the mode out")
        if self.observe.saves and self.checkpoint is None:
            problem = "its files are kept beside the checkpoints, and no checkpoint store is set"
            raise InvalidSettings("observe", problem, 'Write checkpoint_uri="s3://bucket/runs"')
        if self.hostfile is not None:
            check_hostfile(self.hostfile)
        if self.log_limit < 0:
            raise InvalidSettings("log_limit", f"{self.log_limit} is less than 0", "Write bytes, 0 or more")
