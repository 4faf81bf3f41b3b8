"""Messages between agents and the launcher: JSON lines over mutual TLS.

An agent dials the launcher and says :class:`Hello`; the launcher answers :class:`Welcome` with the run's spec, and from
then on tells it which ranks to start and stop. A *rank id* is the launcher's name of one rank process, unique in the
run; it is also the host name under which Horovod knows it, so that each incarnation of a slot is a new host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.marks import SPARSE, VERSION
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.rank_link import CommitDeadline, Handover
from elastic_runtime.protocol.shards import ShardGiven
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status_figures import GpuFigures
from elastic_runtime.tracing.timeline import Mark

WIRE_VERSION = 1
"""Another one with each change of a message, also of those between a rank and the launcher, which agents pass on."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of an agent: which worker it is, and where."""

    worker: str
    node: str
    pid: int
    slots: int
    interface: str
    """Network interface on which its ranks talk to the others'."""
    address: str = field(default="", metadata=SPARSE)
    """IP address there, by which the others reach it; empty: it is not told, nor wants to know of theirs."""
    token: str = field(default="", metadata=SPARSE, repr=False)
    """Secret. Proof that the agent is in the pod of the worker's name, where the place gives one; empty: none."""
    version: int = field(default=WIRE_VERSION, metadata=VERSION)


@dataclass(frozen=True, slots=True)
class Ready:
    """Agent: ranks can start here; with ``warm`` in a fraction of a second."""

    warm: bool
    detail: str = ""
    """Why it is not warm, if it was to be."""


@dataclass(frozen=True, slots=True)
class RankStarted:
    """Agent: that rank is a process now."""

    rank_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """Agent: that rank has ended, and all its output has been sent."""

    rank_id: str
    code: int
    """Exit status; minus the signal's number when a signal ended it."""
    ago: float = 0.0
    """Seconds since it ended: its output may have taken longer."""
    out_of_memory: bool = field(default=False, metadata=SPARSE)
    """It failed, and since it began, the kernel has killed a process of this container for want of memory."""
    by_itself: bool = field(default=False, metadata=SPARSE)
    """It ended before its agent was told to stop it. False: it was not, or the agent is of an image from before."""


@dataclass(frozen=True, slots=True)
class RankSaid:
    """Agent: that rank sent this over its :mod:`elastic_runtime.protocol.rank_link`."""

    rank_id: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RankState:
    """Agent, to :class:`DumpStacks` with ``ask``: the state of that rank's process."""

    rank_id: str
    stopped: bool
    """By a signal (SIGSTOP), or by a debugger."""


@dataclass(frozen=True, slots=True)
class Output:
    """Agent: lines that a rank wrote."""

    rank_id: str
    stream: str
    """``stdout`` or ``stderr``."""
    lines: tuple[str, ...]
    time: datetime


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Periodic message of an agent: the worker's resource usage. Without it, the launcher considers the worker lost."""

    cpu_percent: float
    """Percent of one core since the last heartbeat, agent and ranks together."""
    memory_bytes: int
    """Resident, agent and ranks together."""
    receive_bytes_per_second: float | None = field(default=None, metadata=SPARSE)
    """Rate of all interfaces but the loopback since the last heartbeat. None: not known, as in the first."""
    transmit_bytes_per_second: float | None = field(default=None, metadata=SPARSE)
    """Likewise."""
    gpus: tuple[GpuFigures, ...] = field(default=(), metadata=SPARSE)
    """GPUs of this worker, as far as their vendors' libraries report them."""


@dataclass(frozen=True, slots=True)
class TracesSaved:
    """Agent: what it was told to save, or to merge, is done as far as it can be."""

    files: tuple[str, ...] = ()
    """Names in the checkpoint store."""


@dataclass(frozen=True, slots=True)
class NamedElsewhere:
    """Agent: the name of its machine does not resolve to the address of its ranks."""

    named: str
    """IP address that it resolves to; empty: to none."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Launcher: this is the run."""

    spec: RunSpec
    worker: str = ""
    """Launcher's name for this agent from now on: its own, or another one after its first connection;
    empty: as it called itself."""


@dataclass(frozen=True, slots=True)
class StartRank:
    """Request of the launcher to start a rank in a slot of the worker."""

    rank_id: str
    slot: int
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the engine needs, beside the agent's and the spec's. They include secrets."""


@dataclass(frozen=True, slots=True)
class StopRank:
    """Request of the launcher to end a rank: SIGTERM, and SIGKILL ``grace`` seconds later."""

    rank_id: str
    grace: float
    interrupt: int = field(default=0, metadata=SPARSE)
    """Signal for its own process alone, which may have children to work with until it has ended; 0: SIGTERM for all."""
    stacks: bool = field(default=False, metadata=SPARSE)
    """Have it write first where it stands."""


@dataclass(frozen=True, slots=True)
class TellRank:
    """Launcher: tell that rank this, as :class:`~elastic_runtime.protocol.rank_link.EngineWord`."""

    rank_id: str
    word: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LetEnd:
    """Launcher: tell that rank :class:`~elastic_runtime.protocol.rank_link.MayEnd`."""

    rank_id: str


@dataclass(frozen=True, slots=True)
class GiveShard:
    """Launcher: tell that rank this."""

    rank_id: str
    given: ShardGiven


@dataclass(frozen=True, slots=True)
class SaveTraces:
    """Launcher: save what your ranks have left, and say what."""

    marks: tuple[Mark, ...] = ()
    merge: bool = False
    """Merge the timelines of all worlds, with these marks, and say that."""


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Launcher: have each of your ranks write on stderr where it stands."""

    ask: bool = field(default=False, metadata=SPARSE)
    """And have each say it (:class:`~elastic_runtime.protocol.rank_link.AskStanding`); say yourself whether it runs."""
    quiet: bool = field(default=False, metadata=SPARSE)
    """Write nothing."""


@dataclass(frozen=True, slots=True)
class Host:
    """Worker of a world, with its address and number of ranks, for the hostfile."""

    address: str
    """IP address."""
    slots: int
    """Ranks of the world there."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Launcher: these are in the world that begins, by each one's lowest rank."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Launcher: you are not needed any more; end, and do not dial again."""

    reason: str


AgentMessage = (
    Hello
    | Ready
    | RankStarted
    | RankExited
    | RankSaid
    | RankState
    | Output
    | Heartbeat
    | ReclaimNotice
    | TracesSaved
    | NamedElsewhere
)
LauncherMessage = (
    Welcome
    | StartRank
    | StopRank
    | Handover
    | CommitDeadline
    | TellRank
    | LetEnd
    | GiveShard
    | SaveTraces
    | DumpStacks
    | Hosts
    | Release
)
Message = AgentMessage | LauncherMessage

_VOCABULARY: messages.Vocabulary[Message] = messages.Vocabulary(Message)


def encode(message: Message) -> bytes:
    """Return the message as one line."""
    return _VOCABULARY.write(message)


def decode(plain: Mapping[str, Any]) -> Message:
    """Raises InvalidDocument for a type that is not in it, or a wrong field."""
    message = _VOCABULARY.read(plain)
    if message is None:
        raise InvalidDocument(f"no message is of type {plain.get('type')!r}")
    return message
