"""Processes of this worker's container that the kernel has killed for want of memory.

Where the kernel kills a rank alone, its container and agent live on, and Kubernetes says nothing of it: the counter of
the container's cgroup is all that tells it from any other SIGKILL. The kernel counts before it kills.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Of cgroup v2, and of v1. In a container, its own cgroup is mounted there."""


def oom_kills(counters: Iterable[Path] = _COUNTERS) -> int:
    """Return how many there were so far; 0 also if no file tells."""
    for path in counters:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for name, _, value in (line.partition(" ") for line in lines):
            if name == "oom_kill" and value.isdecimal():
                return int(value)
    return 0
