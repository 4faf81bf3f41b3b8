"""From an Airflow connection of type ``kubernetes`` to clients that are kept.

One transport per connection and event loop, which many share: in a worker for as long as the bridge's loop lives, in a
triggerer while somebody uses it. It is built from a configuration that the synchronous client's library has loaded:
unlike KubernetesHook, which sets the library's process-wide default, so that two connections in one triggerer cannot
disturb each other; and unlike AsyncKubernetesHook, which knows no ``disable_verify_ssl`` and never renews an exec
plugin's token on a client that is kept.

A connection is read again every :data:`FRESH` seconds, for a watch that goes on, too (:func:`confirm`). When it has
changed, or is gone, its client is closed with those who still use it, and no other call gets it.

In a triggerer, Airflow hands connections out over its event loop. Asked synchronously from a thread, Airflow 3.0 and
3.1 answer on another loop, or never. In a worker there is no such loop, and it is asked from a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import yaml

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.connect import import_client, open_transport
from elastic_runtime.kubernetes.transport import Transport
from elastic_training.clusters.kubernetes.access import (
    DEFAULT_CONNECTION,
    Absent,
    Access,
    ask,
    ask_blocking,
    read_access,
    refused,
)
from elastic_training.concurrency.bridge import bridged
from elastic_training.redaction.masking import mask, mask_in_loop, place_in_yaml, secrets_of

FRESH = 60.0
"""Seconds for which Airflow is not asked for the same connection again."""
DOUBT = 240.0
"""Seconds more for which a connection is used that Airflow says it does not have: in a triggerer, so says an Airflow
that does not answer, too. One that may not be used any more is not used any more."""
_lock = threading.Lock()
_configurations: dict[Access, Any] = {}


@dataclass(slots=True)
class _Known:
    """Connection as Airflow returned it, kept for some time."""

    access: Access
    confirmed: float
    """When it did."""
    asked: float
    """When it was asked last. Who finds that too long ago asks; the others use what is known until then."""


_known: dict[str, _Known] = {}
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Access, _Shared]] = WeakKeyDictionary()


async def access_of(connection: str) -> Access:
    """Return the connection's access, at most :data:`FRESH` seconds old if Airflow answers.

    Raises:
        InvalidSettings: there is no such connection, it may not be used, or it contradicts itself.
    """
    known, now = _known.get(connection), time.monotonic()
    if known is not None:
        if now < min(known.asked, known.confirmed + DOUBT) + FRESH:
            return known.access
        known.asked = now
    try:
        asked = asyncio.to_thread(ask_blocking, connection) if bridged() else ask(connection, patient=known is None)
        access = await asked
    except Absent as absent:
        if known is not None and now < known.confirmed + DOUBT + FRESH:
            return known.access
        if connection != DEFAULT_CONNECTION:
            await _let_go(connection)
            raise refused(connection, absent) from None
        access = read_access(connection, {})
    except InvalidSettings:  # It may not be used, or says what cannot be.
        await _let_go(connection)
        raise
    if known is not None and known.access != access:
        await _let_go(connection)
    _known[connection] = _Known(access, confirmed=now, asked=now)
    return access


async def confirm(access: Access) -> None:
    """For who has used it for a while.

    Raises:
        InvalidSettings: the connection is gone, or may not be used any more.
        ClusterUnavailable: it says something else now: begin anew.
    """
    if await access_of(access.connection) != access:
        raise ClusterUnavailable(f"the Airflow connection {access.connection!r} has been changed meanwhile")


def remembered(connection: str) -> Access | None:
    """Return the connection's access from this process's memory, if it has read it before."""
    known = _known.get(connection)
    return known.access if known else None


async def _let_go(connection: str) -> None:
    """Let go of what was made for it: its client is closed once nobody is at it any more."""
    if (known := _known.pop(connection, None)) is None:
        return
    _configurations.pop(known.access, None)
    if shared := _shared.get(asyncio.get_running_loop(), {}).get(known.access):
        await shared.kept.aclose()


@asynccontextmanager
async def client(access: Access, namespace: str) -> AsyncIterator[Client]:
    """For the running event loop. Raises InvalidSettings when what the connection names cannot be read."""
    mine = _shared.setdefault(asyncio.get_running_loop(), {})
    if access not in mine:
        # Reads files, and may run the kubeconfig's plugin.
        configuration = await asyncio.to_thread(_locked_configuration, access)
        await _mask_all(access)
        if access not in mine:
            mine[access] = _Shared(open_transport(configuration, "elastic-training"), lambda: mine.pop(access))
            if kept := bridged():
                await mine[access].kept.enter_async_context(mine[access].used())
                kept.push_async_callback(mine[access].kept.aclose)
    async with mine[access].used() as transport:
        yield Client(transport, namespace)


class _Shared:
    """A transport that is closed with its last user."""

    def __init__(self, transport: Transport, closing: Callable[[], object]) -> None:
        self._transport = transport
        self._closing = closing
        self._users = 0
        self.kept = AsyncExitStack()
        """Holds it open between its users, in a worker."""

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
        if access not in _configurations:
            _configurations[access] = load(access)
        return _configurations[access]


async def _mask_all(access: Access) -> None:
    """Whatever is secret in its kubeconfig; Airflow itself knows of its password and of the whole of its extras."""
    secrets = await asyncio.to_thread(secrets_in, access)
    if bridged():
        await asyncio.to_thread(mask, secrets)
    else:
        await mask_in_loop(secrets)


def forget() -> None:
    """Ask Airflow anew for every connection."""
    with _lock:
        _configurations.clear()
        _known.clear()


def _forget_in_child() -> None:
    # Perhaps the parent's threads held it. Transports belong to event loops, which stayed with the parent.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


# From what a connection says to a configuration of the Kubernetes client, without a word of what is secret in it.


def load(access: Access) -> Any:
    """A configuration of the synchronous client. Reads files, and may run a kubeconfig's plugin.

    Raises:
        InvalidSettings: what the connection names cannot be read, or leads to no cluster.
    """
    from kubernetes import config
    from kubernetes.client import Configuration

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
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidSettings(
            "cluster",
            f"the Airflow connection {access.connection!r} leads to no cluster: {_reason(error).rstrip('.')}",
            "Set in_cluster, kube_config_path or kube_config in it to what works here",
        ) from None  # Its causes may quote a kubeconfig, and the words of its plugin.
    loaded.verify_ssl = loaded.verify_ssl and access.verify
    return loaded


def secrets_in(access: Access) -> list[str]:
    """Tokens, passwords and keys in the kubeconfig that :func:`load` has read, of all its users."""
    text = access.document
    if access.path is not None:
        text = Path(access.path).expanduser().read_text(encoding="utf-8")
    return [] if text is None else list(secrets_of(yaml.safe_load(text)))


def _reason(error: Exception) -> str:
    """Without anything that stands in a kubeconfig, but for names in it: there are tokens and passwords in it."""
    from kubernetes.config import ConfigException

    if isinstance(error, yaml.YAMLError):
        return f"its kubeconfig is not YAML{place_in_yaml(error)}"
    if isinstance(error, ConfigException):
        said = str(error)
        return said.partition(".")[0] if said.startswith("exec:") else said  # Behind it, what the plugin has written.
    if isinstance(error, OSError):
        return f"{error.filename or 'a file of its kubeconfig'}: {error.strerror}"
    return f"its kubeconfig does not have the form of one ({type(error).__name__})"


def _load_default(access: Access, loaded: Any) -> None:
    from kubernetes import config

    try:
        config.load_incluster_config(client_configuration=loaded)
    except config.ConfigException:
        config.load_kube_config(context=access.context, client_configuration=loaded)
