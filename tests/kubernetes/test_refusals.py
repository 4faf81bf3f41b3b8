"""Pods that cannot run: which run fails, which waits, and what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from elastic_runtime.errors import FailureKind, PermanentError
from elastic_runtime.run.runobjects import selector
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.settings import SecretRef
from elastic_training.settings.pods import Hardware
from tests.contract.cluster_kinds import OWNER, KubernetesKind, leaving_nothing
from tests.contract.watching import over, until
from tests.kubernetes_namespace import CONNECTION, Namespace

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def kind(namespace: Namespace) -> Iterator[KubernetesKind]:
    with leaving_nothing(namespace) as made:
        yield made


def refused(namespace: Namespace, kind: KubernetesKind, **pods: object) -> Status:
    """How a run of such pods ends."""
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, replace(namespace.pods, **pods))  # type: ignore[arg-type]  # any field
    ref = run(kind.cluster.claim(kind.spec(), OWNER)).ref
    status = until(kind, ref, over)
    run(kind.cluster.collect(ref, OWNER))
    assert compute_of(namespace, ref) == []
    return status


def compute_of(namespace: Namespace, ref: RunRef) -> list[str]:
    """What would cost something."""
    return namespace.kubectl("get", "jobs,replicasets", f"--selector={selector(run=ref.name)}", "--output=name").split()


@contextmanager
def empty_registry() -> Iterator[str]:
    """Its address for the nodes, which are this machine. It answers, without TLS, and has nothing."""

    class Nothing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:  # the name is http.server's
            self.send_error(404)

        do_GET = do_HEAD  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Is not printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def refuses_plain_http(namespace: Namespace) -> bool:
    """Whether the nodes' runtime does: containerd from 2.1 on, unless it is told otherwise."""
    found = namespace.kubectl("get", "nodes", "--output=jsonpath={.items[*].status.nodeInfo.containerRuntimeVersion}")
    versions = [tuple(map(int, match)) for match in re.findall(r"containerd://(\d+)\.(\d+)", found)]
    return any(version >= (2, 1) for version in versions)


def test_an_image_that_does_not_exist_fails_with_its_name(kind: KubernetesKind, namespace: Namespace) -> None:
    with empty_registry() as address:
        status = refused(namespace, kind, image=f"{address}/elastic-training/no-such:1")
    assert status.failure is FailureKind.POD_REFUSED
    assert f"{address}/elastic-training/no-such:1" in status.reason
    plain = refuses_plain_http(namespace)
    assert ("The registry speaks plain HTTP" if plain else "Correct the image's name") in status.reason


def test_a_registry_that_does_not_answer_is_waited_for_and_named(kind: KubernetesKind, namespace: Namespace) -> None:
    spec = replace(kind.spec(), recovery=RecoverySpec(start_timeout=50.0))  # longer than what fails sooner needs
    pods = replace(namespace.pods, image="localhost:1/elastic-training/no-such:1")
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, pods)
    status = until(kind, run(kind.cluster.claim(spec, OWNER)).ref, over)
    assert status.failure is FailureKind.START_TIMEOUT
    assert "localhost:1/elastic-training/no-such:1" in status.reason


def test_a_secret_that_does_not_exist_is_named(kind: KubernetesKind, namespace: Namespace) -> None:
    spec = replace(kind.spec(), recovery=RecoverySpec(start_timeout=50.0))
    pods = replace(namespace.pods, secrets=[SecretRef("no-such-secret", key="token", env="TOKEN")])
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, pods)
    status = until(kind, run(kind.cluster.claim(spec, OWNER)).ref, over)
    assert status.phase is Phase.FAILED
    assert "no-such-secret" in status.reason


def test_gpus_that_no_node_has_are_waited_for_and_named(kind: KubernetesKind, namespace: Namespace) -> None:
    spec = replace(kind.spec(), recovery=RecoverySpec(start_timeout=20.0))
    pods = replace(namespace.pods, hardware=Hardware(gpus=8))
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, pods)
    ref = run(kind.cluster.claim(spec, OWNER)).ref
    status = until(kind, ref, over)
    assert status.failure is FailureKind.START_TIMEOUT
    assert "nvidia.com/gpu" in status.reason


def test_a_namespace_that_is_not_there_is_named_with_a_remedy(kind: KubernetesKind, namespace: Namespace) -> None:
    kind.cluster = KubernetesCluster(CONNECTION, "no-such-namespace", namespace.pods)
    with pytest.raises(PermanentError, match=r'"no-such-namespace" not found.*Make it, or correct'):
        run(kind.cluster.claim(kind.spec(), OWNER))
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, namespace.pods)
