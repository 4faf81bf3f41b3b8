"""Connections to the cluster that a test can cut."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import yaml

from elastic_runtime.kubernetes.objects import Pod
from elastic_training.clusters.kubernetes import connection
from tests.kubernetes.standin import StandIn
from tests.kubernetes_namespace import Namespace
from tests.wire import Wire, wire


@contextmanager
def wired(standin: StandIn) -> Iterator[tuple[str, Wire]]:
    """Id of an Airflow connection to the cluster over a wire, and the wire."""
    config = kubeconfig()
    url = config["clusters"][0]["cluster"]["server"]
    with wire(url) as made:
        config["clusters"][0]["cluster"] |= {"server": made.url, "tls-server-name": urlsplit(url).hostname}
        with _connection(config, standin.namespace) as name:
            yield name, made


@contextmanager
def as_account(namespace: Namespace, account: str, pod: Pod | None = None) -> Iterator[str]:
    """Id of an Airflow connection with the rights of a service account; with a pod, by a token bound to that pod."""
    place = f"/api/v1/namespaces/{namespace.name}/serviceaccounts/{account}/token"
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}} if pod else {}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
    answer = json.loads(namespace.kubectl("create", f"--raw={place}", "--filename=-", text=json.dumps(request)))
    config = kubeconfig()
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    with _connection(config, namespace) as name:
        yield name


@contextmanager
def _connection(config: dict[str, Any], namespace: Namespace) -> Iterator[str]:
    extra = {"kube_config": json.dumps(config), "namespace": namespace.name}
    name = f"other_{uuid4().hex}"
    os.environ[variable := f"AIRFLOW_CONN_{name.upper()}"] = json.dumps({"conn_type": "kubernetes", "extra": extra})
    try:
        yield name
    finally:
        del os.environ[variable]
        connection.forget()


def kubeconfig() -> dict[str, Any]:
    """Of the cluster; a copy."""
    config: dict[str, Any] = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    assert len(config["clusters"]) == len(config["users"]) == 1, "a kubeconfig with one cluster is easy to change"
    return config
