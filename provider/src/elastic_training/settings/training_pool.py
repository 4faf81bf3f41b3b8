"""A standing pool of workers, as a user brings it up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pool.settings import PoolNotebook, PoolSettings
from elastic_training.settings.values import seconds_of, whole_number

POOL = "pool:"
"""Begin of a cluster's name that is a pool's."""


@dataclass(frozen=True, slots=True)
class TrainingPool:
    """Warm workers on this machine that stay when trainings end, and that several trainings use at once.

    ``cluster=TrainingPool("team-a", max=8)`` brings it up if it is not up yet. Other tasks write
    ``cluster="pool:team-a"``.
    """

    name: str
    """Lower-case letters, digits and hyphens, at most 40."""
    min: int = 0
    """Workers that stay warm though no training has them. On this machine, one warm process stands for all workers, so
    1 has the same effect as more."""
    max: int = 1
    """Most workers, of all trainings together."""
    gpus: int = 0
    """GPUs of each worker. This machine must have so many for ``max`` workers."""
    idle: timedelta | float = timedelta(minutes=10)
    """Time, or seconds, after which workers above ``min`` end that no training has had."""

    jupyter: bool | int = False
    """JupyterLab on this machine's loopback, as long as the pool is up. True: at port 8888. A number: at that port."""
    jupyter_python: str | None = None
    """Interpreter that has JupyterLab. None: that of the workers."""

    def __post_init__(self) -> None:
        self.spec()

    @property
    def cluster(self) -> str:
        """The name by which tasks name it."""
        return f"{POOL}{self.name}"

    def spec(self) -> PoolSettings:
        """Return the keeper's settings. Raise InvalidSettings."""
        numbers = {name: whole_number(f"pool.{name}", getattr(self, name), least=0) for name in ("min", "max", "gpus")}
        return PoolSettings(
            *(self.name, numbers["min"], numbers["max"], numbers["gpus"]),
            seconds_of("pool.idle", self.idle, zero=True),
            self._notebook(),
        )

    def _notebook(self) -> PoolNotebook | None:
        if self.jupyter is False:
            if self.jupyter_python is not None:
                raise InvalidSettings("pool.jupyter_python", "the pool has no notebook", "Write jupyter=True, too")
            return None
        given = {} if self.jupyter is True else {"port": whole_number("pool.jupyter", self.jupyter, least=1)}
        return PoolNotebook(python=self.jupyter_python or "", **given)


def check_greedy(cluster: str, *, greedy: bool) -> None:
    """Raises InvalidSettings if idle workers are to be taken where there are none."""
    if greedy and not cluster.startswith(POOL):
        problem = "only workers of a pool can be idle"
        raise InvalidSettings("workers.greedy", problem, 'Leave it out, or write cluster="pool:NAME"')
