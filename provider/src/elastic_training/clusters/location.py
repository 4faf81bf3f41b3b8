"""Reader of Airflow connections of type ``elastic_training``: where trainings run, and defaults for them.

It leads to a place that has a name of its own (a connection of type kubernetes and a namespace, or ``local``). Whoever
runs in a task's worker asks for it here, and triggers are given the place's own name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_training.kubernetes_syntax import dns_label, image

CONNECTION_TYPE = "elastic_training"
LOCAL, KUBERNETES, SLURM, SPARK, RAY = "local", "kubernetes", "slurm", "spark", "ray"
PLACES = (KUBERNETES, LOCAL, SLURM, SPARK, RAY)
"""To which a connection can lead; the first if it says nothing."""
DEFAULT_KUBERNETES = "kubernetes_default"
CONNECTION_ID = re.compile(r"[\w#!()\-.:]+")
"""Pattern of a connection's id in Airflow, without slashes."""
_FIELDS = (
    "place",
    "kubernetes_conn_id",
    "namespace",
    "image",
    "launcher_image",
    "checkpoint_uri",
    "checkpoint_conn_id",
    "folder",
    "master",
    "ssh_conn_id",
    "address",
    "python",
    "pyspark",
)


@dataclass(frozen=True, slots=True)
class SlurmName:
    """A place in Slurm: ``slurm:/FOLDER`` or ``slurm:CONNECTION@/FOLDER``."""

    folder: str
    """Absolute path, the same on all nodes and on Airflow's machines."""
    ssh: str = ""
    """Id of a connection of type ssh or http; empty: Slurm's commands are called on Airflow's machines."""

    @classmethod
    def parse(cls, name: str) -> SlurmName | None:
        """Read a cluster's name. None: it is no such place, or one that a connection describes."""
        found = re.fullmatch(rf"{SLURM}:(?:({CONNECTION_ID.pattern})@)?(/[^\0\n]*)", name)
        return cls(str(Path(found[2])), found[1] or "") if found else None

    def __str__(self) -> str:
        return f"{SLURM}:{self.ssh}@{self.folder}" if self.ssh else f"{SLURM}:{self.folder}"


@dataclass(frozen=True, slots=True)
class SparkName:
    """A place in Spark: ``spark://HOST:PORT/FOLDER``, as a master's URL with a folder; several masters by commas."""

    master: str
    """URL of the master."""
    folder: str
    """Absolute path, the same on all nodes and on Airflow's machines."""

    @classmethod
    def parse(cls, name: str) -> SparkName | None:
        """Read a cluster's name. None: it is no such place, or one that a connection describes."""
        host = r"(?:[A-Za-z0-9][\w.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
        found = re.fullmatch(rf"({SPARK}://{host}(?:,{host}){{0,9}})(/[^\0\n]*)", name)
        return cls(found[1], str(Path(found[2]))) if found else None

    def __str__(self) -> str:
        return f"{self.master}{self.folder}"


@dataclass(frozen=True, slots=True)
class RayName:
    """A place in Ray: ``ray:HOST:PORT/FOLDER``, or ``ray:https://HOST:PORT/FOLDER``."""

    address: str
    """``http://HOST:PORT`` of Ray's dashboard, with its API of jobs."""
    folder: str
    """Absolute path, the same on all nodes and on Airflow's machines."""

    @classmethod
    def parse(cls, name: str) -> RayName | None:
        """Read a cluster's name. None: it is no such place, or one that a connection describes."""
        found = re.fullmatch(rf"{RAY}:(https?://)?((?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?)(/[^\0\n]*)", name)
        return cls((found[1] or "http://") + found[2], str(Path(found[3]))) if found else None

    def __str__(self) -> str:
        return f"{RAY}:{self.address.removeprefix('http://')}{self.folder}"


JobsName = SlurmName | RayName | SparkName
"""Of a place whose runs are jobs of another system, with documents in a folder."""


def jobs_name(name: str) -> JobsName | None:
    """Read a cluster's name. None: its runs are no jobs, or a connection describes it."""
    return SlurmName.parse(name) or RayName.parse(name) or SparkName.parse(name)


@dataclass(frozen=True, slots=True)
class Location:
    """Place of trainings and their defaults, as a connection describes them."""

    connection: str
    """Its id; empty: it has none yet."""
    place: str = KUBERNETES
    """One of :data:`PLACES`."""
    kubernetes: str = DEFAULT_KUBERNETES
    """Id of a connection of type kubernetes."""
    namespace: str | None = None
    """None: that connection's."""
    image: str | None = None
    """Image of launcher and workers, if the operator sets none."""
    launcher_image: str | None = None
    """Image of the launcher only, if ``pods`` set none."""
    checkpoint_uri: str | None = None
    """Where checkpoints go, where the operator says nothing."""
    checkpoint_conn_id: str | None = None
    """Id of the connection with the credentials for it."""
    jobs: JobsName | None = None
    """If the place is Slurm, Ray or Spark."""
    python: str | None = None
    """Interpreter of launchers and workers there, where a task names none."""
    pyspark: str | None = None
    """Interpreter with pyspark in Spark, where a task names none. None: ``python``."""

    @property
    def cluster(self) -> str:
        """The place's own name: ``local``, ``CONNECTION``, ``CONNECTION/NAMESPACE`` or that of :attr:`jobs`."""
        if self.jobs:
            return str(self.jobs)
        if self.place == LOCAL:
            return LOCAL
        return f"{self.kubernetes}/{self.namespace}" if self.namespace else self.kubernetes


def read_location(connection: str, extra: Mapping[str, Any], namespace: str | None = None) -> Location:
    """From the extras of a connection.

    Args:
        connection: its id; empty: it has none yet.
        extra: what it says; empty fields say nothing, unknown ones are ignored.
        namespace: that the user names; goes before the connection's.

    Raises:
        InvalidSettings: with the field of the connection that is wrong.
    """
    said: dict[str, str] = {}
    for name in _FIELDS:
        value = extra.get(name) or extra.get(f"extra__{CONNECTION_TYPE}__{name}") or ""
        if not isinstance(value, str):
            raise _wrong(connection, name, f"a {type(value).__name__} is not a string", "Write a string")
        if value.strip():
            said[name] = value.strip()
    place = said.get("place", KUBERNETES)
    if place not in PLACES:
        remedy = f"Write {', '.join(map(repr, PLACES[:-1]))} or {PLACES[-1]!r}"
        raise _wrong(connection, "place", f"{place!r} is not a place", remedy)
    if place != KUBERNETES and (namespace or "namespace" in said):  # Of a run that is meant for pods, perhaps.
        raise _wrong(
            connection,
            "namespace",
            "this machine has none" if place == LOCAL else f"{place.capitalize()} has none",
            f"Leave it empty, or set place to {KUBERNETES}",
        )
    if namespace is None and "namespace" in said:
        namespace = dns_label(_field(connection, "namespace"), said["namespace"])
    kubernetes = said.get("kubernetes_conn_id", DEFAULT_KUBERNETES)
    if not CONNECTION_ID.fullmatch(kubernetes):
        remedy = "Write the id of a connection of type kubernetes"
        raise _wrong(connection, "kubernetes_conn_id", f"{kubernetes!r} is not the id of a connection", remedy)
    return Location(
        connection=connection,
        place=place,
        kubernetes=kubernetes,
        namespace=namespace,
        **{name: image(_field(connection, name), said[name]) for name in ("image", "launcher_image") if name in said},
        checkpoint_uri=said.get("checkpoint_uri"),
        checkpoint_conn_id=said.get("checkpoint_conn_id"),
        jobs=_jobs(connection, place, said) if place in (SLURM, RAY, SPARK) else None,
        python=said.get("python"),
        pyspark=said.get("pyspark"),
    )


def _jobs(connection: str, place: str, said: Mapping[str, str]) -> JobsName:
    if place == SPARK:
        return _spark(connection, said)
    name = f"{place}:{said.get('address', '')}{said.get('folder', '')}"
    if place == SLURM:
        name = str(SlurmName(said.get("folder", ""), said.get("ssh_conn_id", "")))
    if (read := jobs_name(name)) is None:
        problem = f"{name[:200]!r} is not a folder of a cluster"
        with_it = (
            "the id of a connection of type ssh or http, or nothing, in ssh_conn_id"
            if place == SLURM
            else "HOST:PORT of Ray's dashboard in address"
        )
        raise _wrong(connection, "folder", problem, f"Write an absolute path in folder, and {with_it}")
    return read


def _spark(connection: str, said: Mapping[str, str]) -> SparkName:
    name = SparkName(said.get("master", ""), said.get("folder", ""))
    if (read := SparkName.parse(str(name))) is None:
        problem = f"{str(name)[:200]!r} is not a master and a folder"
        remedy = 'Write "spark://HOST:7077" in master, and an absolute path in folder'
        raise _wrong(connection, "master", problem, remedy)
    return read


def location_of(connection: str, namespace: str | None = None) -> Location | None:
    """Read the connection from Airflow. None: there is none, or it has another type. Not for an event loop.

    Raises:
        InvalidSettings: it is of this type, and wrong; or it may not be used.
    """
    from elastic_training.airflow.sdk import AirflowNotFoundException, BaseHook

    try:
        found = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        return None
    except PermissionError as error:
        raise _refused(connection, error) from None
    return read_location(connection, found.extra_dejson, namespace) if found.conn_type == CONNECTION_TYPE else None


async def location_in_loop(connection: str, namespace: str | None = None) -> Location | None:
    """Read the connection as :func:`location_of`, in a triggerer's event loop. None also if Airflow does not answer."""
    from elastic_training.airflow.sdk import AirflowNotFoundException
    from elastic_training.airflow.versions import connection_in_loop, extras_in_loop

    try:
        found = await connection_in_loop(connection)
    except AirflowNotFoundException:
        return None
    except PermissionError as error:
        raise _refused(connection, error) from None
    if found.conn_type != CONNECTION_TYPE:
        return None
    return read_location(connection, await extras_in_loop(found), namespace)


def _refused(connection: str, error: Exception) -> InvalidSettings:
    problem = f"the Airflow connection {connection!r} may not be used here ({error})"
    return InvalidSettings("cluster", problem, "Name another one, or allow it")


def _field(connection: str, name: str) -> str:
    return f"{name} of connection {connection}" if connection else name


def _wrong(connection: str, name: str, problem: str, remedy: str) -> InvalidSettings:
    return InvalidSettings(_field(connection, name), problem, remedy)
