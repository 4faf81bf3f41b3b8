"""What happens to pods and nodes of a real cluster while a real run trains there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run.runobjects import ObjectNames, Part, selector
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState
from elastic_training.clusters.types import ClaimOutcome
from elastic_training.concurrency.bridge import run
from tests.contract.cluster_kinds import OWNER, KubernetesKind, leaving_nothing
from tests.contract.watching import NEWER, over, training, until
from tests.kubernetes_namespace import REPOSITORY, Namespace

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def kind(namespace: Namespace) -> Iterator[KubernetesKind]:
    with leaving_nothing(namespace) as made:
        yield made


@contextmanager
def node_down(node: str) -> Iterator[None]:
    """The machine is gone without a word, and back in the end."""
    subprocess.run(["tools/cluster", "node-down", node], cwd=REPOSITORY, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["tools/cluster", "node-up", node], cwd=REPOSITORY, check=True, capture_output=True)


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
    return {worker.name for worker in status.workers if worker.state.gone}


@pytest.mark.shows(engine="horovod", fault=("resize", "notice", "worker"), place="kubernetes")
def test_a_run_goes_on_and_grows_back_whatever_happens_to_its_workers(
    kind: KubernetesKind, namespace: Namespace
) -> None:
    ref = run(kind.cluster.claim(kind.spec(start=2, maximum=4), OWNER)).ref
    until(kind, ref, training(2))

    namespace.kubectl("scale", "replicaset", ObjectNames(ref.name).worker, "--replicas=4")
    before = until(kind, ref, training(4))
    assert run(kind.cluster.size(ref)) == 4

    victim = next(worker.name for worker in before.workers if worker.state is WorkerState.TRAINING)
    namespace.kubectl("delete", "pod", WorkerName.parse(victim).pod, "--wait=false")
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


def test_a_run_that_nobody_begins_to_watch_takes_itself_away(kind: KubernetesKind, namespace: Namespace) -> None:
    spec = kind.spec()
    spec = replace(spec, timing=replace(spec.timing, unwatched=5.0))
    ref = run(kind.cluster.claim(spec, OWNER)).ref
    run(kind.cluster.take_log_lease(ref, OWNER))
    until(kind, ref, training(1))
    assert run(kind.cluster.claim(spec, NEWER)).outcome is ClaimOutcome.ADOPTED
    namespace.kubectl("wait", "--for=delete", f"configmap/{ObjectNames(ref.name).root}", "--timeout=240s")


@pytest.mark.shows(engine="horovod", fault="launcher", place="kubernetes")
def test_another_launcher_takes_over(kind: KubernetesKind, namespace: Namespace) -> None:
    ref = run(kind.cluster.claim(kind.spec(start=2), OWNER)).ref
    before = until(kind, ref, training(2))
    of_run = selector(run=ref.name, part=Part.LAUNCHER)
    namespace.kubectl("delete", "pods", f"--selector={of_run}", "--force", "--grace-period=0")
    after = until(kind, ref, again(2, before))
    assert [event.kind for event in after.events[: len(before.events)]] == [event.kind for event in before.events]
    assert EventKind.RESTARTED in {event.kind for event in after.events}
    kind.finish(ref)
    assert until(kind, ref, over).phase is Phase.SUCCEEDED
