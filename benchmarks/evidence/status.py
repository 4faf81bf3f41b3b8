"""What a run of ours says about itself, and what its processes hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from elastic_runtime.errors import RunNotFound
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.status import Status

_UNDER_WAY = "/dev/shm/torch_"  # noqa: S108  # what torch calls them


def status_of(folder: Path) -> Status | None:
    """Of the run that a side of ours has laid down in a job's folder; None: not yet."""
    try:
        return RunDir(folder / "run").read_status()
    except RunNotFound:
        return None


@dataclass(frozen=True, slots=True)
class Held:
    """By the processes of one kind."""

    processes: int
    descriptors: int
    memory: float
    """MiB: of each process its own and its part of what it shares (PSS)."""


def held(launcher: int, status: Status) -> dict[str, Held]:
    """What the launcher and its descendants hold, by kind: launcher, agents, ranks, their loaders, and other."""
    agents = {worker.pids[0] for worker in status.workers if worker.pids}
    ranks = {pid for worker in status.workers for pid in worker.pids[1:]}
    whole: dict[str, list[psutil.Process]] = {}
    root = psutil.Process(launcher)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            kind = _kind(process, launcher, agents, ranks)
            whole.setdefault(kind, []).append(process)
    return {kind: _sum(processes) for kind, processes in sorted(whole.items())}


def _kind(process: psutil.Process, launcher: int, agents: set[int], ranks: set[int]) -> str:
    if process.pid == launcher:
        return "launcher"
    if process.pid in agents:
        return "agents"
    if process.pid in ranks:
        return "ranks"
    return "loaders" if process.ppid() in ranks else "warm processes"


def _descriptors(pid: int) -> int:
    """Open ones, without those of batches that are on their way from a loader to its rank."""
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += not str(each.readlink()).startswith(_UNDER_WAY)
    return count


def _sum(processes: Iterable[psutil.Process]) -> Held:
    counted: Counter[str] = Counter()
    for process in processes:
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            memory = process.memory_full_info().pss
            counted.update(processes=1, descriptors=_descriptors(process.pid), memory=memory)
    return Held(counted["processes"], counted["descriptors"], round(counted["memory"] / 2**20, 1))
