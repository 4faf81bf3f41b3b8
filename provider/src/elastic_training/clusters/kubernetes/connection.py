"""From an Airflow connection of type ``kubernetes`` to clients that are kept.

One transport per connection and event loop, which many share: in a worker for as long as the bridge's loop lives, in a
triggerer while somebody uses it. It is built from a configuration that the synchronous client's library has loaded:
unlike KubernetesHook, which sets the library's process-wide default, so that two connections in one triggerer cannot
disturb each other; and unlike AsyncKubernetesHook, which knows no ``disable_verify_ssl`` and never renews an exec
plugin's token on a client that is kept.

In a triggerer, Airflow hands connections out over its event loop. Asked synchronously from a thread, Airflow 3.0 and
3.1 answer on another loop, or never. In a worker there is no such loop, and it is asked from a thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.connect import import_client, open_transport
from elastic_runtime.kubernetes.transport import Transport
from elastic_training.bridge import bridged

DEFAULT_NAMESPACE = "default"
FRESH = 300.0
"""Seconds for which a triggerer does not ask Airflow for the same connection again."""
_PAUSES = (1.0, 3.0, None)
"""Seconds between attempts in a triggerer: to it, an Airflow that does not answer has no connections."""
_DEFAULT_CONNECTION = "kubernetes_default"
"""May be missing, as in cncf.kubernetes: then the service account of this pod, or the kubeconfig at its usual place."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a connection says."""

    connection: str
    """Its id."""
    in_cluster: bool
    path: str | None
    """Of a kubeconfig."""
    document: str | None = field(repr=False)
    """A kubeconfig, as JSON or YAML; with its secrets."""
    context: str | None
    namespace: str
    verify: bool
    """Whether the server's certificate has to be valid."""


def read_access(connection: str, extra: Mapping[str, Any]) -> Access:
    """What the extras of a connection say.

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


_lock = threading.Lock()
_accesses: dict[str, tuple[Access, float]] = {}
_configurations: dict[Access, Any] = {}
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Access, _Shared]] = WeakKeyDictionary()


async def access_of(connection: str) -> Access:
    """What the connection says.

    Raises:
        InvalidSettings: there is no such connection, or it contradicts itself.
    """
    return await (asyncio.to_thread(_ask_blocking, connection) if bridged() else _ask(connection))


async def _ask(connection: str) -> Access:
    """Airflow, from the event loop of a triggerer."""
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    known = _accesses.get(connection)
    if known is not None and time.monotonic() < known[1] + FRESH:
        return known[0]
    for pause in _PAUSES:
        try:
            found = await get_async_connection(connection)
            extra = await get_async_extra_dejson(found)
            return _remember(connection, read_access(connection, _checked(found, extra)))
        except (AirflowNotFoundException, PermissionError) as error:
            if known is not None:
                return _remember(connection, known[0])
            if pause is None:
                return _remember(connection, _missing(connection, error))
            await asyncio.sleep(pause)
    raise AssertionError("unreachable: the last pause is None")


def remembered(connection: str) -> Access | None:
    """What the connection said, if this process has asked before."""
    known = _accesses.get(connection)
    return known[0] if known else None


def _ask_blocking(connection: str) -> Access:
    """Airflow, from a thread of a worker."""
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

    if known := _accesses.get(connection):
        return known[0]
    try:
        found = BaseHook.get_connection(connection)
    except (AirflowNotFoundException, PermissionError) as error:
        return _remember(connection, _missing(connection, error))
    return _remember(connection, read_access(connection, _checked(found, found.extra_dejson)))


def _missing(connection: str, error: Exception) -> Access:
    if connection == _DEFAULT_CONNECTION and not isinstance(error, PermissionError):
        return read_access(connection, {})
    raise InvalidSettings(
        "cluster",
        f"there is no Airflow connection {connection!r} that this task may use ({error})",
        'Add one of type kubernetes, or write cluster="local"',
    ) from error


def _checked(connection: Any, extra: dict[str, Any]) -> dict[str, Any]:
    if connection.conn_type not in ("kubernetes", "", None):
        raise InvalidSettings(
            "cluster",
            f"the Airflow connection {connection.conn_id!r} is of type {connection.conn_type!r}",
            "Name a connection of type kubernetes",
        )
    return extra


def _remember(connection: str, access: Access) -> Access:
    _accesses[connection] = (access, time.monotonic())
    return access


@asynccontextmanager
async def client(access: Access, namespace: str) -> AsyncIterator[Client]:
    """For the running event loop. Raises InvalidSettings when what the connection names cannot be read."""
    mine = _shared.setdefault(asyncio.get_running_loop(), {})
    if access not in mine:
        # Reads files, and may run the kubeconfig's plugin.
        configuration = await asyncio.to_thread(_locked_configuration, access)
        if access not in mine:
            mine[access] = _Shared(open_transport(configuration, "elastic-training"), lambda: mine.pop(access))
            if kept := bridged():
                await kept.enter_async_context(mine[access].used())
    async with mine[access].used() as transport:
        yield Client(transport, namespace)


class _Shared:
    """A transport that is closed with its last user."""

    def __init__(self, transport: Transport, closing: Callable[[], object]) -> None:
        self._transport = transport
        self._closing = closing
        self._users = 0

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Transport]:
        self._users += 1
        try:
            yield self._transport
        finally:
            self._users -= 1
            if not self._users:
                self._closing()
                await self._transport.close()


def _locked_configuration(access: Access) -> Any:
    import_client()
    with _lock:
        return _configuration(access)


def _configuration(access: Access) -> Any:
    import yaml
    from kubernetes import config
    from kubernetes.client import Configuration

    if access in _configurations:
        return _configurations[access]
    loaded = Configuration()
    try:
        if access.in_cluster:
            config.load_incluster_config(client_configuration=loaded)
        elif access.document is not None:
            document = yaml.safe_load(access.document)
            config.load_kube_config_from_dict(document, context=access.context, client_configuration=loaded)
        elif access.path is not None:
            config.load_kube_config(access.path, context=access.context, client_configuration=loaded)
        else:
            _load_default(access, loaded)
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError) as error:
        raise InvalidSettings(
            "cluster",
            f"the Airflow connection {access.connection!r} leads to no cluster: {error}",
            "Set in_cluster, kube_config_path or kube_config in it to what works here",
        ) from error
    loaded.verify_ssl = loaded.verify_ssl and access.verify
    _configurations[access] = loaded
    return loaded


def _load_default(access: Access, loaded: Any) -> None:
    from kubernetes import config

    try:
        config.load_incluster_config(client_configuration=loaded)
    except config.ConfigException:
        config.load_kube_config(context=access.context, client_configuration=loaded)


def forget() -> None:
    """Ask Airflow anew for every connection."""
    with _lock:
        _configurations.clear()
        _accesses.clear()


def _forget_in_child() -> None:
    # Perhaps the parent's threads held it. Transports belong to event loops, which stayed with the parent.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
