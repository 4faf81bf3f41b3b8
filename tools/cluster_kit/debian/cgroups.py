"""Control groups of a node: all its containers are below one name, which is how they are found again."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_MOUNTS = Path("/proc/mounts")


def make(name: str) -> None:
    """The group of a node, in every hierarchy (version 1), or in the one there is (version 2)."""
    for root in _roots():
        group = root / name
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty until set, and then nothing can run in it
            with suppress(OSError):
                (group / file).write_text((root / file).read_text())
    if _version_2():
        available = (_roots()[0] / "cgroup.controllers").read_text().split()
        with suppress(OSError):  # what the group above does not hand down cannot be handed on
            (_roots()[0] / name / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in available))


def kill(name: str) -> bool:
    """SIGKILL to everything in the group; True if there was anything."""
    pids = _members(name)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def remove(name: str) -> None:
    """The empty groups of a node."""
    for root in _roots():
        for group in sorted((root / name).rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):
                group.rmdir()
        with suppress(OSError):
            (root / name).rmdir()


def _members(name: str) -> set[int]:
    pids: set[int] = set()
    for root in _roots():
        for file in (root / name).rglob("cgroup.procs"):
            with suppress(OSError):
                pids.update(map(int, file.read_text().split()))
    return pids


def _roots() -> list[Path]:
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    version_1 = [Path(folder) for folder, kind in mounts if kind == "cgroup"]
    return version_1 or [Path(folder) for folder, kind in mounts if kind == "cgroup2"][:1]


def _version_2() -> bool:
    return all(line.split()[2] != "cgroup" for line in _MOUNTS.read_text().splitlines())
