"""From the name that a user writes (``cluster="local"``) to the cluster."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow.providers.common.compat.sdk import conf

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.cluster import Cluster
from elastic_training.kubernetes_syntax import dns_label
from elastic_training.pods import Pods
from elastic_training.settings import is_template

SECTION = "elastic_training"
"""Of Airflow's configuration."""
LOCAL = "local"
_CONNECTION = re.compile(r"[\w#!()\-.:]+")
"""What Airflow allows in a connection's id, but for slashes."""


def _local() -> Cluster:
    from elastic_training.clusters.local import LocalCluster

    default_root = Path(tempfile.gettempdir()) / f"elastic-training-{os.geteuid()}"
    root = conf.get(SECTION, "local_root", fallback="")
    python = conf.get(SECTION, "local_python", fallback="")
    return LocalCluster(Path(root) if root else default_root, python or sys.executable)


_substitutes: dict[str, Cluster] = {}


def check_cluster(name: object) -> None:
    """For the time at which a DAG file is parsed: imports nothing, asks nobody.

    Raises:
        InvalidSettings: no cluster can have that name.
    """
    if name != LOCAL and name not in _substitutes and not is_template(name):
        split_name(name)


def split_name(name: object) -> tuple[str, str | None]:
    """Connection and namespace in ``CONNECTION`` or ``CONNECTION/NAMESPACE``. Raises InvalidSettings."""
    remedy = f"Write {LOCAL!r}, the id of an Airflow connection of type kubernetes, or CONNECTION/NAMESPACE"
    if not isinstance(name, str):
        raise InvalidSettings("cluster", f"{name!r} is not a string", remedy)
    connection, slash, namespace = name.partition("/")
    if not _CONNECTION.fullmatch(connection):
        raise InvalidSettings("cluster", f"{name!r} is not the id of a connection", remedy)
    return connection, dns_label("cluster", namespace) if slash else None


def get_cluster(name: str, pods: Pods | None = None) -> Cluster:
    """The cluster of that name, configured from Airflow's connections and ``[elastic_training]`` section now.

    Args:
        name: ``local``, ``CONNECTION`` or ``CONNECTION/NAMESPACE``.
        pods: of the runs that it shall create, where it runs pods; None: it will create none.

    Raises:
        InvalidSettings: no cluster has that name.
    """
    if substitute := _substitutes.get(name):
        return substitute
    if name == LOCAL:
        return _local()
    connection, namespace = split_name(name)
    from elastic_training.clusters.kubernetes.cluster import KubernetesCluster

    return KubernetesCluster(connection, namespace, pods)


@contextmanager
def substituted(name: str, cluster: Cluster) -> Iterator[None]:
    """For tests of DAGs: within the block, ``name`` is this cluster, whatever it was before.

    Usually a :class:`~elastic_training.clusters.fake.FakeCluster`.
    """
    before = _substitutes.get(name)
    _substitutes[name] = cluster
    try:
        yield
    finally:
        del _substitutes[name]
        if before is not None:
            _substitutes[name] = before
