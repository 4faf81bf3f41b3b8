"""Settings of a pool, as they stand in its folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.marks import SPARSE, VERSION
from elastic_runtime.run.pool import check_pool_name

MOST_WORKERS = 1000
"""Workers of a pool."""
LONGEST_IDLE = 30 * 86400.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class PoolNotebook:
    """A JupyterLab server beside a pool's workers."""

    port: int = 8888
    """On loopback."""
    python: str = ""
    """Interpreter that has JupyterLab. Empty: that of the workers."""

    def __post_init__(self) -> None:
        if not 1024 <= self.port <= 65535:
            problem = f"{self.port} is not a port that a program without rights can have"
            raise InvalidSettings("pool.jupyter", problem, "Write 1024 to 65535, or True for 8888")


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What can change of a pool that is up."""

    minimum: int
    maximum: int
    idle: float

    def changed(self, minimum: int | None, maximum: int | None, idle: float | None) -> PoolSize:
        """Return another size, in which what is None is as it is."""
        return PoolSize(
            self.minimum if minimum is None else minimum,
            self.maximum if maximum is None else maximum,
            self.idle if idle is None else idle,
        )


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A pool of workers that stay when runs end."""

    name: str
    minimum: int = 0
    """Workers that stay warm though no run has them."""
    maximum: int = 1
    gpus: int = 0
    """GPUs of each worker."""
    idle: float = 600.0
    """Seconds after which workers above the minimum end that no run has had."""
    notebook: PoolNotebook | None = field(default=None, metadata=SPARSE)
    """None: there is none."""
    before: PoolSize | None = field(default=None, metadata=SPARSE)
    """What the pool was brought up with; None: it has not been resized since."""
    version: int = field(default=1, metadata=VERSION)

    def __post_init__(self) -> None:
        check_pool_name(self.name)
        if not 1 <= self.maximum <= MOST_WORKERS:
            remedy = f"Write 1 to {MOST_WORKERS}"
            raise InvalidSettings("pool.max", f"{self.maximum} is not within the bounds", remedy)
        if not 0 <= self.minimum <= self.maximum:
            remedy = f"Write 0 to {self.maximum}, which is pool.max"
            raise InvalidSettings("pool.min", f"{self.minimum} is not within the bounds", remedy)
        if not 0 <= self.gpus <= MOST_WORKERS:
            raise InvalidSettings("pool.gpus", f"{self.gpus} is not within the bounds", "Write GPUs of one worker")
        if not 0 <= self.idle <= LONGEST_IDLE:
            remedy = "Write 0 s to 30 days"
            raise InvalidSettings("pool.idle", f"{self.idle:g} s is not within the bounds", remedy)

    @property
    def size(self) -> PoolSize:
        """What can change."""
        return PoolSize(self.minimum, self.maximum, self.idle)

    @property
    def first(self) -> PoolSize:
        """What the pool was brought up with."""
        return self.before or self.size

    @property
    def words(self) -> str:
        """For people."""
        return f"min={self.minimum}, max={self.maximum}, gpus={self.gpus}, idle={self.idle:g} s"

    def check_workers(self, minimum: int, slots: int, to_resize: str) -> None:
        """Raise InvalidSettings if a run can have no workers of this pool.

        Args:
            minimum: fewest workers of the run.
            slots: ranks of each.
            to_resize: what resizes the pool, after "Write less, or".
        """
        if minimum > self.maximum:
            problem = f"{minimum} is more than pool {self.name} has, which is {self.maximum}"
            raise InvalidSettings("workers.min", problem, f"Write less, or {to_resize}")
        if self.gpus and slots > self.gpus:
            problem = f"{slots} ranks cannot share {self.gpus} GPUs, as a worker of pool {self.name} has"
            raise InvalidSettings("workers.slots", problem, f"Write at most {self.gpus}")

    def resized(self, size: PoolSize) -> PoolSettings:
        """Return the settings with another size. Raise InvalidSettings."""
        before = None if size == self.first else self.first
        return replace(self, minimum=size.minimum, maximum=size.maximum, idle=size.idle, before=before)

    def agrees(self, wanted: PoolSettings) -> bool:
        """Whether a pool with these settings is the wanted one: now, or as it was brought up."""
        return wanted in (replace(self, before=None), self.resized(self.first))
