"""How workers, ranks and their processes are called, written and read in one place.

=======================  ====================  ======================================================================
``worker-2``             a worker              its agent's first connection; on Kubernetes the name of its pod
``worker-2.r1``          the same, once more   its agent has dialled again: no name is used for two connections
``worker-2.r1.0.3``      a rank                the fourth in slot 0 of that worker: no name is used for two ranks
``worker-2.r1.0.3~1``    a process             the second under that rank's name, since the first did not get far
=======================  ====================  ======================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

_WORKER = re.compile(r"(?P<pod>.+?)(\.r(?P<redials>\d+))?")
_RANK = re.compile(r"(?P<worker>.+)\.(?P<slot>\d+)\.(?P<incarnation>\d+)(~(?P<attempt>\d+))?")


@dataclass(frozen=True, slots=True)
class WorkerName:
    """Name of one connection of an agent."""

    pod: str
    """Pod, as the agent names itself."""
    redials: int = 0
    """How often it has been connected before."""

    @classmethod
    def parse(cls, text: str) -> WorkerName:
        """Any text is the name of a worker."""
        found = _WORKER.fullmatch(text)
        return cls(found["pod"], int(found["redials"] or 0)) if found else cls(text)

    def __str__(self) -> str:
        return f"{self.pod}.r{self.redials}" if self.redials else self.pod


@dataclass(frozen=True, slots=True)
class RankName:
    """Name of a rank, or of one of its processes."""

    worker: WorkerName
    slot: int
    incarnation: int = 0
    """How many ranks there were in that slot before."""
    attempt: int | None = None
    """Number of processes under the rank's name before this one."""

    @classmethod
    def parse(cls, text: str) -> RankName:
        """Raises ValueError for what is not the name of a rank."""
        found = _RANK.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not the name of a rank: WORKER.SLOT.INCARNATION, or with ~ATTEMPT")
        attempt = None if found["attempt"] is None else int(found["attempt"])
        return cls(WorkerName.parse(found["worker"]), int(found["slot"]), int(found["incarnation"]), attempt)

    @property
    def rank(self) -> RankName:
        """Name of the rank without the attempt, the same for all processes that were started for it."""
        return replace(self, attempt=None)

    @property
    def lasting_slot(self) -> str:
        """The slot's name, the same again when its worker comes back after its connection was lost."""
        return f"{self.worker.pod}.{self.slot}"

    def __str__(self) -> str:
        rank = f"{self.worker}.{self.slot}.{self.incarnation}"
        return rank if self.attempt is None else f"{rank}~{self.attempt}"


@lru_cache(maxsize=8192)  # A launcher asks for those of all ranks again and again.
def rank_id_of(process: str) -> str:
    """Return the id of the rank that a process runs, by the name of the process. Raise ValueError, as ``parse``."""
    return str(RankName.parse(process).rank)


@lru_cache(maxsize=8192)
def worker_name_of(rank: str) -> str:
    """Return the name of the worker of a rank, or of a process, by its name. Raise ValueError, as ``parse``."""
    return str(RankName.parse(rank).worker)
