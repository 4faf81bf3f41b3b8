"""How to reach an API server: from a pod's service account, a kubeconfig, or what somebody else has loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.transport import Transport

_COPIED = ("ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy", "proxy_headers")


@asynccontextmanager
async def connect(namespace: str, kubeconfig: Path | None, agent: str) -> AsyncIterator[Client]:
    """Connect as this pod's service account, or as a kubeconfig says.

    Args:
        namespace: of all requests.
        kubeconfig: None: in a pod.
        agent: our name, for the server's own log.

    Raises:
        InvalidSettings: neither is there.
    """
    from kubernetes_asyncio import client, config

    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # it is not
        else:
            await config.load_kube_config(str(kubeconfig), client_configuration=settings, persist_config=False)
    except config.ConfigException as error:
        remedy = "Run it in a pod with automountServiceAccountToken: true, or give --kubeconfig"
        raise InvalidSettings("service account", str(error), remedy) from error
    transport = _transport(settings, agent)
    try:
        yield Client(transport, namespace)
    finally:
        await transport.close()


def open_transport(configuration: Any, agent: str) -> Transport:
    """Open a transport by a configuration of the synchronous client, in the running loop.

    That client's library can do what the asynchronous one cannot: have an exec plugin give new tokens for as long as
    the client lives.
    """
    from kubernetes_asyncio import client

    async def renew(settings: Any) -> None:
        # May read a file, or run the kubeconfig's plugin.
        settings.api_key = await asyncio.to_thread(_token, configuration)

    settings = client.Configuration(host=configuration.host)
    for field in _COPIED:
        setattr(settings, field, getattr(configuration, field))
    settings.api_key = _token(configuration)
    if configuration.refresh_api_key_hook is not None:
        settings.refresh_api_key_hook = renew
    return _transport(settings, agent)


def import_client() -> None:
    """For a thread, before the others: these are hundreds of modules, for which an event loop would stand still."""
    import kubernetes_asyncio.client  # noqa: F401  # kept by Python itself


def _token(configuration: Any) -> dict[str, str]:
    found = [setting["value"] for setting in configuration.auth_settings().values() if setting["value"]]
    return {"BearerToken": found[0]} if found else {}


def _transport(settings: Any, agent: str) -> Transport:
    from kubernetes_asyncio import client

    settings.connection_pool_maxsize = 0  # Without limit: each watch, and each run's log, is a stream of its own.
    api_client = client.ApiClient(settings)
    api_client.user_agent = agent
    return Transport(api_client)
