"""A pool in pods, and runs that have its pods as workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from elastic_runtime.documents import from_json
from elastic_runtime.pool.pods.objects import POOL_LABEL, STATUS_KEY, PoolNames, PoolPart
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolStatus
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.runobjects import PART_LABEL
from elastic_runtime.run.status import Status
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.kubernetes.pools import NamespacePools
from elastic_training.concurrency.bridge import run as wait_for
from elastic_training.settings import Workers
from elastic_training.settings.training_pool import PodPool
from tests.kubernetes_namespace import CONNECTION, Namespace
from tests.kubernetes_reclaims.pod_run import Place, PodRun
from tests.paced import Script, until

NAME = "team-a"
SETTINGS = PoolSettings(NAME, 1, 3, idle=600.0)


@dataclass(frozen=True, slots=True)
class PooledPlace(Place):
    """One whose runs have workers of the pool."""

    warm_workers: int = 1

    @property
    def pool(self) -> PodPool:
        """With which a run brings it up."""
        return PodPool(NAME, replace(SETTINGS, minimum=self.warm_workers), self.pods.of_run(Workers(1, 1, 1)))

    @property
    def cluster(self) -> KubernetesCluster:
        return KubernetesCluster(CONNECTION, self.namespace.name, self.pool)

    @property
    def pools(self) -> NamespacePools:
        """Those of the namespace."""
        return NamespacePools(CONNECTION, self.namespace.name)

    def status(self) -> PoolStatus | None:
        """As its keeper has written it last."""
        found = json.loads(self.namespace.kubectl("get", "configmap", PoolNames(NAME).status, "--output=json"))
        text = found.get("data", {}).get(STATUS_KEY)
        return from_json(PoolStatus, text) if text else None

    def pods_of(self, part: PoolPart) -> list[str]:
        """Names of those that are there."""
        labels = f"--selector={POOL_LABEL}={NAME},{PART_LABEL}={part}"
        return self.namespace.kubectl("get", "pods", labels, "--output=name").split()

    def warm(self, workers: int) -> None:
        """Await so many workers that no training has."""
        until(lambda: (now := self.status()) and now.free == workers, lambda: f"{workers} free: {self.status()}", 240)


def left(namespace: Namespace) -> list[str]:
    kinds = "configmaps,secrets,services,replicasets,pods,networkpolicies"
    return namespace.kubectl("get", kinds, f"--selector={POOL_LABEL}={NAME}", "--output=name").split()


@contextmanager
def kept(place: Place, warm: int = 1) -> Iterator[PooledPlace]:
    """Up, with so many warm workers; nothing of it is left afterwards."""
    made = PooledPlace(place.namespace, place.folder, place.image, warm_workers=warm)
    wait_for(made.pools.have_up(made.pool))
    try:
        made.warm(warm)
        yield made
    finally:
        wait_for(made.pools.take_down(NAME))
        connection.forget()
        until(lambda: not left(place.namespace), lambda: f"left: {left(place.namespace)}")


class Pool:
    """As ``tests.local.pooled.Pool``."""

    def __init__(self, place: PooledPlace) -> None:
        self._place = place
        self._runs: list[PodRun] = []

    def run(self, script: Script, workers: tuple[int, int, int], priority: int) -> PooledRun:
        """Start a run."""
        made = PooledRun(self._place, script, workers, engine="torch", pool=PoolSpec(NAME, priority))
        self._runs.append(made)
        made.start()
        return made

    def close(self) -> None:
        """End all."""
        for run in self._runs:
            run.close()


class PooledRun(PodRun):
    """One whose end is called as that of a run on this machine."""

    def succeed(self) -> Status:
        return self.finish()
