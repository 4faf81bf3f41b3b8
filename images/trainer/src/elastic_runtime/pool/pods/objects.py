"""The objects of a pool in a namespace, how they are named, and what they carry. Names and keys: no client, no I/O.

==============  =====================  =========================  ==================================================
kind            name                   written by                 meaning
==============  =====================  =========================  ==================================================
ConfigMap       ``pool-NAME``          who brings the pool up,    the **root**: owns all below; annotation SETTINGS;
                                       or resizes it              COMPLETE once all below were created
ConfigMap       ``pool-NAME-status``   creator (empty), keeper    data ``status.json``, the
                                                                  :class:`~elastic_runtime.pool.status.PoolStatus`
Secret          ``pool-NAME-tls``      creator, once              the pool's certificates
Service         ``pool-NAME-keeper``   creator, once              the address that hosts and launchers dial
ReplicaSet      ``pool-NAME-keeper``   creator, once              the keeper's pod
ReplicaSet      ``pool-NAME-worker``   creator (0); its           the hosts' pods, each a worker
                                       ``scale``: keeper
NetworkPolicy   ``pool-NAME``          creator, once              pods of the pool, and launchers of its runs, talk to
                                                                  each other
==============  =====================  =========================  ==================================================

Their labels are those of a run ``pool-NAME``, by which the admission policy for launchers binds the keeper to them. But
another one says who manages them, so that they are never taken for a run's.
"""

from __future__ import annotations

from enum import StrEnum

from elastic_runtime.run.runobjects import MANAGED_BY_LABEL, PART_LABEL, PREFIX, RUN_LABEL, UID_LABEL

MANAGED_BY = f"{PREFIX}-pool"
"""Value of the label :data:`~elastic_runtime.run.runobjects.MANAGED_BY_LABEL` of every object."""
POOL_LABEL = f"{PREFIX}/pool"
"""On every object and pod, and on launchers of runs that the pool has: its name."""
SETTINGS = f"{PREFIX}/pool-settings"
"""Annotation of the root: JSON of the :class:`~elastic_runtime.pool.settings.PoolSettings`."""
ENDING = f"{PREFIX}/pool-ending"
"""Annotation of the root: since when somebody looks whether the pool has runs, to take it down. No run is created
meanwhile."""
STATUS_KEY = "status.json"

KEEPER_PORT = 7078
"""At which the keeper listens, on its pod's address."""
TLS_FOLDER = "/run/elastic-training/pool"
"""Where the pods of a pool, and launchers of its runs, find their part of the pool's certificates."""
KEEPER_COMMAND = ("python", "-m", "elastic_runtime.pool.pods", "keeper")
HOST_COMMAND = ("python", "-m", "elastic_runtime.pool.pods", "host")
KEEPER_CONTAINER = "keeper"
KEEPER_VARIABLE = "ELASTIC_TRAINING_POOL_KEEPER"
"""``ADDRESS:PORT`` of the keeper's Service, in the environment of hosts and of launchers of the pool's runs."""
POOL_VARIABLE = "ELASTIC_TRAINING_POOL"
POOL_UID_VARIABLE = "ELASTIC_TRAINING_POOL_UID"
"""Which incarnation of the pool, as its labels say."""
ROOT_VARIABLE = "ELASTIC_TRAINING_POOL_ROOT"
"""Kubernetes' uid of the root, in the environment of the keeper."""


class PoolPart(StrEnum):
    """Part of an object in its pool."""

    ROOT = "root"
    STATUS = "status"
    TLS = "tls"
    KEEPER = "keeper"
    HOST = "worker"
    NETWORK = "network"


class PoolNames:
    """Names of a pool's objects.

    Args:
        pool: its name.
    """

    def __init__(self, pool: str) -> None:
        self.root = self.network = f"pool-{pool}"
        """Name of the root, and of the NetworkPolicy."""
        self.status = f"{self.root}-status"
        self.tls = f"{self.root}-tls"
        self.keeper = f"{self.root}-keeper"
        """Name of the keeper's Service and ReplicaSet."""
        self.worker = f"{self.root}-worker"
        """Name of the hosts' ReplicaSet."""


def labels(pool: str, uid: str, part: PoolPart) -> dict[str, str]:
    """Return the labels of an object or pod of a pool."""
    whose = {MANAGED_BY_LABEL: MANAGED_BY, POOL_LABEL: pool, RUN_LABEL: PoolNames(pool).root}
    return {**whose, UID_LABEL: uid, PART_LABEL: part.value}


def selector(pool: str, uid: str, part: PoolPart) -> str:
    """A label selector for the pods of a part of a pool."""
    return ",".join(f"{key}={value}" for key, value in labels(pool, uid, part).items())


def audience(pool: str, uid: str) -> str:
    """For whom the tokens of a pool's pods are: the launchers of its runs, and nobody else."""
    return f"{PREFIX}/pool/{pool}/{uid}"
