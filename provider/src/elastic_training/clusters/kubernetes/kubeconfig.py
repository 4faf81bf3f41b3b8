"""From what a connection says to a configuration of the Kubernetes client, without a word of what is secret in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.kubernetes.access import Access
from elastic_training.redaction.masking import place_in_yaml, secrets_of


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
