"""What happens to pods and nodes of a real cluster while a real run trains there, and what cannot run at all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from elastic_runtime.errors import PermanentError
from elastic_runtime.runobjects import ObjectNames, Part, pod_of, selector
from elastic_runtime.spec import RecoverySpec
from elastic_runtime.status import EventKind, FailureKind, Phase, Status, WorkerState
from elastic_training.clusters.base import RunRef
from elastic_training.clusters.kubernetes.cluster import KubernetesCluster
from elastic_training.pods import Hardware, SecretRef
from tests.contract.cluster_kinds import OWNER, KubernetesKind
from tests.contract.test_cluster_contract import over, training, until
from tests.kubernetes_namespace import CONNECTION, REPOSITORY, Namespace

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def kind(namespace: Namespace) -> Iterator[KubernetesKind]:
    made = KubernetesKind(namespace)
    try:
        yield made
    finally:
        made.close()
        assert namespace.left(made.name) == []


@contextmanager
def node_down(node: str) -> Iterator[None]:
    """The machine is gone without a word, and back in the end."""
    subprocess.run(["scripts/cluster", "node-down", node], cwd=REPOSITORY, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["scripts/cluster", "node-up", node], cwd=REPOSITORY, check=True, capture_output=True)


@contextmanager
def drained(namespace: Namespace, node: str, run: str) -> Iterator[None]:
    """Cordoned, and this run's workers evicted from it."""
    of_run = selector(run=run, part=Part.WORKER)
    try:
        namespace.kubectl(
            "drain", node, f"--pod-selector={of_run}", "--delete-emptydir-data", "--force", "--timeout=120s"
        )
        yield
    finally:
        namespace.kubectl("uncordon", node)


def again(workers: int, than: Status) -> Callable[[Status], bool]:
    """A newer world of that size trains."""
    return lambda now: training(workers)(now) and now.generation > than.generation


def node_of_a_worker(namespace: Namespace, status: Status) -> str:
    """One on which no launcher is."""
    launcher = namespace.kubectl(
        "get",
        "pods",
        f"--selector={selector(run=status.run, part=Part.LAUNCHER)}",
        "--output=jsonpath={.items[0].spec.nodeName}",
    )
    present = {worker.node for worker in status.workers if worker.state is WorkerState.TRAINING}
    return sorted(present - {launcher} or present)[0]


def gone(status: Status) -> set[str]:
    return {worker.name for worker in status.workers if worker.state in (WorkerState.LEFT, WorkerState.LOST)}


def test_a_run_goes_on_and_grows_back_whatever_happens_to_its_workers(
    kind: KubernetesKind, namespace: Namespace
) -> None:
    ref = kind.cluster.claim(kind.spec(start=2, maximum=4), OWNER).ref
    until(kind, ref, training(2))

    namespace.kubectl("scale", "replicaset", ObjectNames(ref.name).worker, "--replicas=4")
    before = until(kind, ref, training(4))
    assert kind.cluster.size(ref) == 4

    victim = next(worker.name for worker in before.workers if worker.state is WorkerState.TRAINING)
    namespace.kubectl("delete", "pod", pod_of(victim), "--wait=false")
    before = until(kind, ref, again(4, before))
    assert victim in gone(before)
    assert (EventKind.NOTICE, victim) in {(event.kind, event.worker) for event in before.events}

    with drained(namespace, node_of_a_worker(namespace, before), ref.name):
        before = until(kind, ref, again(4, before))
    assert EventKind.LOST not in {event.kind for event in before.events}, "all of them left in order"

    with node_down(node_of_a_worker(namespace, before)):
        after = until(kind, ref, again(4, before))
    assert EventKind.LOST in {event.kind for event in after.events}
    assert {event.kind for event in after.events}.isdisjoint({EventKind.RESTARTED, EventKind.SUSPENDED}), "in place"


def test_another_launcher_takes_over(kind: KubernetesKind, namespace: Namespace) -> None:
    ref = kind.cluster.claim(kind.spec(start=2), OWNER).ref
    before = until(kind, ref, training(2))
    of_run = selector(run=ref.name, part=Part.LAUNCHER)
    namespace.kubectl("delete", "pods", f"--selector={of_run}", "--force", "--grace-period=0")
    after = until(kind, ref, again(2, before))
    assert [event.kind for event in after.events[: len(before.events)]] == [event.kind for event in before.events]
    assert EventKind.RESTARTED in {event.kind for event in after.events}
    kind.finish(ref)
    assert until(kind, ref, over).phase is Phase.SUCCEEDED


def refused(namespace: Namespace, kind: KubernetesKind, **pods: object) -> Status:
    """How a run of such pods ends."""
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, replace(namespace.pods, **pods))  # type: ignore[arg-type]  # any field
    ref = kind.cluster.claim(kind.spec(), OWNER).ref
    status = until(kind, ref, over)
    kind.cluster.collect(ref, OWNER)
    assert compute_of(namespace, ref) == []
    return status


def compute_of(namespace: Namespace, ref: RunRef) -> list[str]:
    """What would cost something."""
    return namespace.kubectl("get", "jobs,replicasets", f"--selector={selector(run=ref.name)}", "--output=name").split()


@contextmanager
def empty_registry() -> Iterator[str]:
    """Its address for the nodes, which are this machine. It answers, and has nothing."""

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


def test_an_image_that_does_not_exist_fails_with_its_name(kind: KubernetesKind, namespace: Namespace) -> None:
    with empty_registry() as address:
        status = refused(namespace, kind, image=f"{address}/elastic-training/no-such:1")
    assert status.failure is FailureKind.POD_REFUSED
    assert f"{address}/elastic-training/no-such:1" in status.reason
    assert "Correct the image's name" in status.reason


def test_a_registry_that_does_not_answer_is_waited_for_and_named(kind: KubernetesKind, namespace: Namespace) -> None:
    spec = replace(kind.spec(), recovery=RecoverySpec(start_timeout=50.0))  # longer than what fails sooner needs
    pods = replace(namespace.pods, image="localhost:1/elastic-training/no-such:1")
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, pods)
    status = until(kind, kind.cluster.claim(spec, OWNER).ref, over)
    assert status.failure is FailureKind.START_TIMEOUT
    assert "localhost:1/elastic-training/no-such:1" in status.reason


def test_a_secret_that_does_not_exist_is_named(kind: KubernetesKind, namespace: Namespace) -> None:
    spec = replace(kind.spec(), recovery=RecoverySpec(start_timeout=20.0))
    pods = replace(namespace.pods, secrets=[SecretRef("no-such-secret", key="token", env="TOKEN")])
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, pods)
    status = until(kind, kind.cluster.claim(spec, OWNER).ref, over)
    assert status.phase is Phase.FAILED
    assert "no-such-secret" in status.reason


def test_gpus_that_no_node_has_are_waited_for_and_named(kind: KubernetesKind, namespace: Namespace) -> None:
    spec = replace(kind.spec(), recovery=RecoverySpec(start_timeout=20.0))
    pods = replace(namespace.pods, hardware=Hardware(gpus=8))
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, pods)
    ref = kind.cluster.claim(spec, OWNER).ref
    status = until(kind, ref, over)
    assert status.failure is FailureKind.START_TIMEOUT
    assert "nvidia.com/gpu" in status.reason


def test_a_namespace_that_is_not_there_is_named_with_a_remedy(kind: KubernetesKind, namespace: Namespace) -> None:
    kind.cluster = KubernetesCluster(CONNECTION, "no-such-namespace", namespace.pods)
    with pytest.raises(PermanentError, match=r'"no-such-namespace" not found.*Make it, or correct'):
        kind.cluster.claim(kind.spec(), OWNER)
    kind.cluster = KubernetesCluster(CONNECTION, namespace.name, namespace.pods)
