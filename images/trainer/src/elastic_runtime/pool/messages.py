"""Messages with a pool's keeper: JSON lines over mutual TLS, with the pool's own certificates.

Launchers and hosts dial the keeper. A launcher says :class:`RunHello`, and then what it wishes for, whenever that
changes; the keeper answers with what it has. A host is a process with warm imports, in which the agents of workers are
forked: on this machine one for all workers, in pods one for each. It says :class:`HostHello`, and is told what to fork.
Each message tells all that there is to be told at that time, so that a peer that dials again goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.marks import SPARSE, VERSION
from elastic_runtime.protocol.messages import Vocabulary

POOL_VERSION = 4
"""Another one with each change of a message."""
AGENT_FILES = ("ca.crt", "agent.crt", "agent.key")
"""Certificates that an agent of a run has."""
MAX_ENVIRONMENT = 192 * 1024
"""Bytes of an agent's variables, as JSON: they are one message to the warm process."""


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises InvalidDocument if an agent cannot be given these variables."""
    if (size := len(json.dumps(dict(environment)))) > MAX_ENVIRONMENT:
        raise InvalidDocument(f"the environment has {size} bytes, and in a pool it can have {MAX_ENVIRONMENT}")


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent of a run is started."""

    arguments: tuple[str, ...]
    """Of :mod:`elastic_runtime.agent`, but for ``--worker``, ``--tls``, and those that a host knows."""
    notices: str
    """Folder in which its notice may appear; empty: it appears in no file."""
    directory: str
    """To be in; empty: that of the host."""
    environment: Mapping[str, str] = field(repr=False)
    """Of the agent and its ranks, on top of the host's. It includes secrets."""
    certificates: Mapping[str, str] = field(repr=False)
    """Content of the run's :data:`AGENT_FILES`, by name. Secret."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Launcher: how many workers the run would have, and which are to be ended now."""

    minimum: int
    wanted: int
    """0: none, as while it is paused."""
    maximum: int
    priority: int
    greedy: bool
    ends: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """Workers whose agents are to be killed: they are lost, or have not left in time."""
    taken: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """Workers whose machines will be taken, with no rank of the world: no other agent is to come there."""

    def without(self, worker: str) -> Wishes:
        """Return the same without any that are about a worker: its agent has ended."""
        ends = tuple(each for each in self.ends if each != worker)
        return replace(self, ends=ends, taken=tuple(each for each in self.taken if each != worker))


@dataclass(frozen=True, slots=True)
class RunHello:
    """First message of a launcher."""

    run: str
    uid: str
    since: float
    """When the run came to the pool, in seconds since the epoch: its place among runs of one priority."""
    has: int
    """What the keeper before has allotted to it."""
    next_worker: int
    """Number of the next worker: no name is used twice in a run."""
    launch: Launch
    wishes: Wishes
    term: int = field(default=0, metadata=SPARSE)
    """Number of this launcher among those of the run: a later one is the run's, also while an earlier one is
    connected. 0: there is no other."""
    assigned: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """Names of workers that it has heard of. Others that have an agent of the run are an earlier launcher's."""
    version: int = field(default=POOL_VERSION, metadata=VERSION)


@dataclass(frozen=True, slots=True)
class Granted:
    """Keeper, to a launcher: what the run has. If it has more workers, it lets some leave."""

    workers: int
    """0: it waits."""
    assigned: tuple[str, ...]
    """Names of its workers that are here, or about to come."""
    reason: str
    """Why it has fewer than it wishes for, for people; empty: it has all."""
    trouble: str = field(default="", metadata=SPARSE)
    """Why workers that it has do not come, for people; empty: nobody knows of a reason."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Keeper, before it ends a connection: why it has no use for who has dialled, for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Busy:
    """A worker that has an agent."""

    place: int
    uid: str
    worker: str


@dataclass(frozen=True, slots=True)
class HostHello:
    """First message of a host."""

    host: str
    capacity: int
    """Most workers that it can stand for, by their places, from 0."""
    busy: tuple[Busy, ...] = ()
    version: int = field(default=POOL_VERSION, metadata=VERSION)


@dataclass(frozen=True, slots=True)
class HostLeaves:
    """Host: it will end with the agent that it has, if any, and has no place for another one."""


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """Host: nothing of that agent is left."""

    place: int
    uid: str
    worker: str
    code: int


@dataclass(frozen=True, slots=True)
class ForkAgent:
    """Keeper, to a host: fork an agent."""

    place: int
    uid: str
    worker: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class KillAgent:
    """Keeper, to a host: kill an agent with all that it runs."""

    uid: str
    worker: str


@dataclass(frozen=True, slots=True)
class EndHost:
    """Keeper, to a host: no worker is needed any more."""


ToKeeper = RunHello | Wishes | HostHello | HostLeaves | AgentEnded
ToLauncher = Granted | Refused
ToHost = ForkAgent | KillAgent | EndHost | Refused
TO_KEEPER: Vocabulary[ToKeeper] = Vocabulary(ToKeeper)
FROM_KEEPER: Vocabulary[ToLauncher | ToHost] = Vocabulary(ToLauncher | ToHost)
