"""How a pool stands, as its keeper writes it for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_runtime.marks import SPARSE, VERSION
from elastic_runtime.pool.settings import PoolSettings


@dataclass(frozen=True, slots=True)
class PoolRun:
    """A run in a pool."""

    run: str
    uid: str
    priority: int
    greedy: bool
    minimum: int
    wanted: int
    maximum: int
    has: int
    """What is allotted to it; 0: it waits."""
    workers: tuple[str, ...]
    """Those that are there, or about to come or leave."""
    reason: str
    """Why it has fewer than it wishes for; empty: it has all."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool and the runs in it, the highest priority first."""

    settings: PoolSettings
    warm: int
    """Workers that stand ready or work; 0 while none is needed."""
    free: int
    """Those of them that no run has."""
    runs: tuple[PoolRun, ...] = ()
    trouble: str = field(default="", metadata=SPARSE)
    """Why workers do not come, for people; empty: nobody knows of a reason."""
    version: int = field(default=1, metadata=VERSION)
