"""From the name that a user writes (``cluster="local"``) to the cluster.

Other packages bring places of their own: an entry point of the group :data:`PLACES` names a function that makes the
cluster of ``NAME`` or ``NAME/REST``, given the rest or None. It is imported when a task first needs it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.ray.jobs import RaySpec
from elastic_runtime.run.pool import check_pool_name
from elastic_runtime.slurm.jobs import SlurmSpec
from elastic_runtime.spark.jobs import SparkSpec
from elastic_training.airflow.sdk import conf
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.location import (
    CONNECTION_ID,
    LOCAL,
    RAY,
    SLURM,
    SPARK,
    Location,
    RayName,
    SlurmName,
    jobs_name,
    location_in_loop,
    location_of,
)
from elastic_training.kubernetes_syntax import dns_label
from elastic_training.settings.pods import Pods
from elastic_training.settings.templating import is_template
from elastic_training.settings.training_pool import POOL, PodPool, PoolName

SECTION = "elastic_training"
"""Section of Airflow's configuration."""
PLACES = "elastic_training.places"

_substitutes: dict[str, Cluster] = {}


def check_cluster(name: object) -> None:
    """For the time at which a DAG file is parsed: imports no place, asks nobody.

    Raises:
        InvalidSettings: no cluster can have that name.
    """
    if is_template(name) or (isinstance(name, str) and (name in (LOCAL, *_substitutes) or jobs_name(name))):
        return
    if isinstance(name, str) and (pool := PoolName.parse(name)):
        check_pool_name(pool.name)
        if "@" in name:
            split_name(pool.on)
        return
    try:
        split_name(name)
    except InvalidSettings:
        if not isinstance(name, str) or _place(name) is None:
            raise


def split_name(name: object) -> tuple[str, str | None]:
    """Connection and namespace in ``CONNECTION`` or ``CONNECTION/NAMESPACE``. Raises InvalidSettings."""
    if not isinstance(name, str):
        raise InvalidSettings("cluster", f"{name!r} is not a string", _remedy())
    connection, slash, namespace = re.sub(f"^({SLURM}|{RAY}|{SPARK}):", "", name).partition("/")
    if not CONNECTION_ID.fullmatch(connection) or (slash and is_jobs(name)):  # Where there are no namespaces.
        raise InvalidSettings("cluster", f"{name!r} is not the id of a connection", _remedy())
    return connection, dns_label("cluster", namespace) if slash else None


def is_pool(name: str) -> bool:
    """Whether that is the name of a standing pool, as in ``pool:team-a``."""
    return PoolName.parse(name) is not None


def place_of(name: str) -> str:
    """Return the cluster that the runs of a cluster are in: of a pool in pods that of its pods, of others itself."""
    pool = PoolName.parse(name)
    return pool.on if pool and pool.on else name


def is_slurm(name: str) -> bool:
    """Whether that is the name of a place in Slurm: ``slurm:/FOLDER``, or one that a connection describes."""
    return name.startswith(f"{SLURM}:")


def is_spark(name: str) -> bool:
    """Whether that is the name of a place in Spark: ``spark://HOST:PORT/FOLDER``, or one that a connection has."""
    return name.startswith(f"{SPARK}:")


def is_ray(name: str) -> bool:
    """Whether that is the name of a place in Ray: ``ray:HOST:PORT/FOLDER``, or one that a connection describes."""
    return name.startswith(f"{RAY}:")


def is_jobs(name: str) -> bool:
    """Whether the runs of the cluster of that name are jobs of Slurm, Ray or Spark."""
    return is_slurm(name) or is_ray(name) or is_spark(name)


def is_local(own_name: str) -> bool:
    """Whether the runs of the cluster of that name are processes of this machine."""
    return own_name == LOCAL or (is_pool(own_name) and place_of(own_name) == own_name)


def has_pods(name: str) -> bool:
    """Whether the runs of the cluster of that name (its :func:`own_name`) are made of pods, as Pods describes them."""
    return not is_local(name) and not is_jobs(name) and _place(name) is None


def namespace_of(own_name: str) -> str:
    """In which the runs of a place are; empty where there are no namespaces, or while nobody has asked the place."""
    if not has_pods(own_name) or own_name in _substitutes:
        return ""
    from elastic_training.clusters.kubernetes.connection import remembered

    connection, namespace = split_name(own_name)
    access = remembered(connection)
    return namespace or (access.namespace if access else "")


def location(name: str) -> Location | None:
    """Return the location of that connection, if its type is ``elastic_training``. Not for an event loop.

    Raises:
        InvalidSettings: it says what cannot be.
    """
    name = place_of(name)
    return None if _is_own(name) else _checked(name, location_of(*split_name(name)))


def own_name(name: str) -> str:
    """Return the name that triggers get: that of the place to which a connection of type ``elastic_training`` leads.

    Of a pool in pods that of the pods, which has its runs, too. Any other name as it is. For a task's worker; a trigger
    that no task has begun: :func:`own_name_in_loop`. Raises InvalidSettings.
    """
    leads = location(name)
    return leads.cluster if leads else place_of(name)


async def own_name_in_loop(name: str) -> str:
    """Return the name as :func:`own_name` does, in a triggerer's event loop. Raise InvalidSettings."""
    name = place_of(name)
    leads = None if _is_own(name) else _checked(name, await location_in_loop(*split_name(name)))
    return leads.cluster if leads else name


def get_cluster(name: str) -> Cluster:
    """The cluster of that name, configured from Airflow's connections and ``[elastic_training]`` section now.

    For a task's worker, and not for an event loop: what kind of connection it is, Airflow is asked.

    Args:
        name: ``local``; ``pool:NAME``; ``pool:NAME@CONNECTION/NAMESPACE``; ``slurm:/FOLDER``; ``ray:HOST:PORT/FOLDER``;
            ``spark://HOST:PORT/FOLDER``; a place of another package;
            ``CONNECTION`` or ``CONNECTION/NAMESPACE``.

    Raises:
        InvalidSettings: no cluster has that name.
    """
    return cluster_called(own_name(name))


def cluster_called(
    name: str, jobs: Pods | PodPool | SlurmSpec | RaySpec | SparkSpec | PoolSettings | None = None
) -> Cluster:
    """Return the cluster of an :func:`own_name`, as :func:`get_cluster` does. Does no I/O, so triggers may call it.

    Args:
        name: of the cluster.
        jobs: what the runs that it shall create are made of, for pods, Slurm, Ray or Spark; None: it creates
            none. For a pool on this machine: with which the first run brings it up; None: it has to be up.
    """
    if substitute := _substitutes.get(name):
        return substitute
    if name == LOCAL:
        return _local()
    if isinstance(found := jobs_name(name), SlurmName):
        from elastic_training.clusters.slurm import SlurmCluster

        return SlurmCluster(found, jobs if isinstance(jobs, SlurmSpec) else None)
    if isinstance(found, RayName):
        from elastic_training.clusters.ray import RayCluster

        return RayCluster(found, jobs if isinstance(jobs, RaySpec) else None)
    if found is not None:
        from elastic_training.clusters.spark import SparkCluster

        return SparkCluster(found, jobs if isinstance(jobs, SparkSpec) else None)
    if pool := PoolName.parse(name):
        from elastic_training.clusters.pool import PoolCluster

        return PoolCluster(
            *local_settings(),
            check_pool_name(pool.name),
            jobs if isinstance(jobs, PoolSettings) else None,
        )
    if place := _place(name):
        return _made_by(place, name.partition("/")[2] or None)
    connection, namespace = split_name(name)
    from elastic_training.clusters.kubernetes.place import KubernetesCluster

    return KubernetesCluster(connection, namespace, jobs if isinstance(jobs, Pods | PodPool) else None)


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


def _local() -> Cluster:
    from elastic_training.clusters.local import LocalCluster

    return LocalCluster(*local_settings())


def local_settings() -> tuple[Path, str]:
    """The folder of the runs of this machine, and the interpreter of their launchers."""
    from airflow.configuration import AIRFLOW_HOME

    root = conf.get(SECTION, "local_root", fallback="") or Path(AIRFLOW_HOME, "elastic_training")
    return Path(root), conf.get(SECTION, "local_python", fallback="") or sys.executable


@cache
def _places() -> dict[str, EntryPoint]:
    """By name; of two of one name the first that Python finds, as with any two packages of one name."""
    return {each.name: each for each in reversed(tuple(entry_points(group=PLACES)))}


def _is_own(name: str) -> bool:
    if is_local(name) or name in _substitutes:
        return True
    return _place(name) is not None or jobs_name(name) is not None


def _checked(name: str, found: Location | None) -> Location | None:
    """Raise InvalidSettings if a name says that its connection leads into Slurm, Ray or Spark, and it does not."""
    place = name.partition(":")[0]
    if is_jobs(name) and (found is None or found.place != place):
        problem = f"{name!r} is not the name of a connection of type elastic_training whose place is {place}"
        raise InvalidSettings("cluster", problem, _remedy())
    return found


def _place(name: str) -> EntryPoint | None:
    return _places().get(name.partition("/")[0])


def _made_by(place: EntryPoint, rest: str | None) -> Cluster:
    try:
        made = place.load()(rest)
    except (ImportError, AttributeError) as error:
        raise InvalidSettings(
            "cluster",
            f"the place {place.name!r} ({place.value}) cannot be loaded: {error}",
            "Repair or remove the package that brings it",
        ) from error
    if not isinstance(made, Cluster):
        raise InvalidSettings(
            "cluster",
            f"the place {place.name!r} ({place.value}) has made a {type(made).__name__}, not a Cluster",
            "Repair or remove the package that brings it",
        )
    return made


def _remedy() -> str:
    names = [
        repr(name)
        for name in (
            *(
                LOCAL,
                f"{POOL}NAME",
                f"{POOL}NAME@CONNECTION",
                f"{SLURM}:/FOLDER",
                f"{RAY}:HOST:PORT/FOLDER",
                f"{SPARK}://HOST:PORT/FOLDER",
            ),
            *sorted(_places()),
        )
    ]
    return (
        f"Write {', '.join(names)}, the id of an Airflow connection of type kubernetes or elastic_training, "
        "or CONNECTION/NAMESPACE"
    )
