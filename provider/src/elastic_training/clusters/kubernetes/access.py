"""Reader of Airflow connections of type ``kubernetes``, in any process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.versions import connection_in_loop, extras_in_loop

DEFAULT_NAMESPACE = "default"
DEFAULT_CONNECTION = "kubernetes_default"
"""May be missing, as in cncf.kubernetes: then the service account of this pod, or the kubeconfig at its usual place."""
_PAUSES = (1.0, 3.0, None)
"""Seconds between attempts in a triggerer: to it, an Airflow that does not answer has no connections."""


@dataclass(frozen=True, slots=True)
class Access:
    """Access to a cluster, as a connection describes it."""

    connection: str
    """Its id."""
    in_cluster: bool
    path: str | None
    """Path of a kubeconfig."""
    document: str | None = field(repr=False)
    """A kubeconfig, as JSON or YAML; with its secrets."""
    context: str | None
    namespace: str
    verify: bool
    """Whether the server's certificate has to be valid."""


def read_access(connection: str, extra: Mapping[str, Any]) -> Access:
    """Read the extras of a connection.

    Raises:
        InvalidSettings: they contradict each other.
    """

    def said(name: str) -> Any:
        return extra.get(name) or extra.get(f"extra__kubernetes__{name}") or None

    document = said("kube_config")
    access = Access(
        connection=connection,
        in_cluster=_is_set(said("in_cluster")),
        path=said("kube_config_path"),
        document=json.dumps(document) if isinstance(document, dict) else document,
        context=said("cluster_context"),
        namespace=said("namespace") or DEFAULT_NAMESPACE,
        verify=not _is_set(said("disable_verify_ssl")),
    )
    if sum(map(bool, (access.in_cluster, access.path, access.document))) > 1:
        raise InvalidSettings(
            "cluster",
            f"the connection {connection!r} sets more than one of in_cluster, kube_config_path and kube_config",
            "Keep one of them",
        )
    return access


def _is_set(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes")


class Absent(Exception):
    """Airflow has no such connection, or does not answer."""


async def ask(connection: str, *, patient: bool) -> Access:
    """Airflow, from the event loop of a triggerer. Raises Absent, or InvalidSettings."""
    from elastic_training.airflow.sdk import AirflowNotFoundException

    for pause in _PAUSES if patient else (None,):
        try:
            found = await connection_in_loop(connection)
            return read_access(connection, _checked(found, await extras_in_loop(found)))
        except PermissionError as error:
            raise refused(connection, error) from None
        except AirflowNotFoundException as error:
            if pause is None:
                raise Absent(str(error)) from None
            await asyncio.sleep(pause)
    raise AssertionError("unreachable: the last pause is None")


def ask_blocking(connection: str) -> Access:
    """Airflow, from a thread of a worker. Raises Absent, or InvalidSettings."""
    from elastic_training.airflow.sdk import AirflowNotFoundException, BaseHook

    try:
        found = BaseHook.get_connection(connection)
    except PermissionError as error:
        raise refused(connection, error) from None
    except AirflowNotFoundException as error:
        raise Absent(str(error)) from None
    return read_access(connection, _checked(found, found.extra_dejson))


def ask_once(connection: str) -> Access:
    """The same, where a connection that is not there may be left to its defaults. Raises InvalidSettings."""
    try:
        return ask_blocking(connection)
    except Absent as absent:
        if connection != DEFAULT_CONNECTION:
            raise refused(connection, absent) from None
        return read_access(connection, {})


def refused(connection: str, error: Exception) -> InvalidSettings:
    """The error for a connection that cannot be had."""
    return InvalidSettings(
        "cluster",
        f"Airflow connection {connection!r} is not defined, or this task may not read it ({error})",
        'Add one of type kubernetes or elastic_training, or write cluster="local"',
    )


def _checked(connection: Any, extra: dict[str, Any]) -> dict[str, Any]:
    if connection.conn_type not in ("kubernetes", "", None):
        raise InvalidSettings(
            "cluster",
            f"the Airflow connection {connection.conn_id!r} is of type {connection.conn_type!r}",
            "Name a connection of type kubernetes",
        )
    return extra
