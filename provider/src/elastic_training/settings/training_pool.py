"""A standing pool of workers, as a user brings it up, and its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pool.settings import PoolNotebook, PoolSettings
from elastic_training.settings.pods import Pods, pods_of
from elastic_training.settings.values import seconds_of, whole_number
from elastic_training.settings.workers import Workers

POOL = "pool:"
"""Begin of a cluster's name that is a pool's."""


@dataclass(frozen=True, slots=True)
class PoolName:
    """A standing pool: ``pool:NAME`` on this machine; ``pool:NAME@CONNECTION``, or with ``/NAMESPACE``, in pods."""

    name: str
    on: str = ""
    """Cluster that its pods are in; empty: this machine."""

    @classmethod
    def parse(cls, name: str) -> PoolName | None:
        """Read a cluster's name. None: it is not that of a pool."""
        pool, _, on = name.removeprefix(POOL).partition("@")
        return cls(pool, on) if name.startswith(POOL) else None

    def __str__(self) -> str:
        return f"{POOL}{self.name}@{self.on}" if self.on else f"{POOL}{self.name}"


@dataclass(frozen=True, slots=True)
class PodPool:
    """A standing pool in pods of a namespace, as the cluster of a run needs it."""

    name: str
    settings: PoolSettings | None = None
    """With which the first run brings it up; None: it has to be up."""
    pods: Pods | None = None
    """Its pods, without templates; None: it has to be up."""


@dataclass(frozen=True, slots=True)
class TrainingPool:
    """Warm workers that stay when trainings end, and that several trainings use at once: on this machine, or in pods.

    ``cluster=TrainingPool("team-a", max=8)`` brings it up if it is not up yet. Other tasks write
    ``cluster="pool:team-a"``. In pods, ``TrainingPool("team-a", max=8, on="CONNECTION/NAMESPACE", pods=Pods(image=…))``
    and ``"pool:team-a@CONNECTION/NAMESPACE"``.
    """

    name: str
    """Lower-case letters, digits and hyphens, at most 40."""
    min: int = 0
    """Workers that stay warm though no training has them. On this machine, one warm process stands for all workers, so
    1 has the same effect as more. In pods, each is a pod."""
    max: int = 1
    """Most workers, of all trainings together."""
    gpus: int = 0
    """GPUs of each worker. On this machine, there must be so many for ``max`` workers."""
    idle: timedelta | float = timedelta(minutes=10)
    """Time, or seconds, after which workers above ``min`` end that no training has had."""

    jupyter: bool | int = False
    """JupyterLab on this machine's loopback, as long as the pool is up. True: at port 8888. A number: at that port."""
    jupyter_python: str | None = None
    """Interpreter that has JupyterLab. None: that of the workers."""
    on: str = ""
    """``"CONNECTION"`` or ``"CONNECTION/NAMESPACE"``, of a connection of type kubernetes or elastic_training: the pool
    is in pods there. Empty: it is on this machine."""
    pods: Pods | Mapping[str, Any] | None = None
    """Pods of the pool. The image can be that of a connection of type elastic_training. Trainings of the pool have no
    others: their launchers have ``pods.launcher``."""
    spot: bool = False
    """As in :class:`~elastic_training.settings.workers.Workers`, of the pods; so are ``shm`` and ``machine``."""
    shm: str | None = None
    machine: str | None = None

    def __post_init__(self) -> None:
        self.spec()
        if self.on:
            self._pods()
            if self.jupyter is not False:
                remedy = "Leave it out, and write jupyter=Jupyter(...) in a training outside of a pool"
                raise InvalidSettings("pool.jupyter", "a pool in pods has no notebook", remedy)
            return
        for name in ("pods", "spot", "shm", "machine"):
            if getattr(self, name):
                remedy = 'Write on="CONNECTION/NAMESPACE", too, or leave it out'
                raise InvalidSettings(f"pool.{name}", "it is about pods, and the pool is on this machine", remedy)

    @property
    def cluster(self) -> str:
        """The name by which tasks name it."""
        return str(PoolName(self.name, self.on))

    def pod_pool(self, image: str | None = None, launcher_image: str | None = None) -> PodPool:
        """Return a pool in pods, with its pods.

        Args:
            image: if ``pods`` have none, as of a connection of type elastic_training.
            launcher_image: the same, of the launcher.

        Raises:
            InvalidSettings: there is no image.
        """
        pods = self._pods()
        pods = replace(pods, image=pods.image or image, launcher_image=pods.launcher_image or launcher_image)
        if not pods.image:
            remedy = 'Write pods=Pods(image="registry/trainer:1"), or set one in a connection of type elastic_training'
            raise InvalidSettings("pool.pods.image", "no container image is set for the pods of the pool", remedy)
        return PodPool(self.name, self.spec(), pods)

    def _pods(self) -> Pods:
        pods = pods_of({} if self.pods is None else self.pods)
        hardware = Workers(1, 1, 1, gpus=self.gpus, spot=self.spot, shm=self.shm, machine=self.machine)
        return pods.of_run(hardware)

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
