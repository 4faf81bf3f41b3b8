"""Runs in real pods whose launcher is a few lines of Python: what a test wants of it, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json
from elastic_runtime.errors import RunNotFound
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, PODS, REPLICA_SETS
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import headline
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.claims import Times
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.settings import Pods
from tests.kubernetes_namespace import CONNECTION, Namespace
from tests.paced import until

OWNER = "the first try"
SLEEPS = "import time\ntime.sleep(3600)"


class StandIn:
    """A cluster, and one name for runs on it.

    Args:
        namespace: of the runs.
        name: of the run.
    """

    def __init__(self, namespace: Namespace, name: str) -> None:
        self.namespace = namespace
        self.name = name

    def pods(self, program: str = SLEEPS, **settings: Any) -> Pods:
        """Whose launcher, and whose workers, run this Python program."""
        return replace(self.namespace.pods, command=["tini", "--", "python", "-u", "-c", program], **settings)

    def cluster(
        self,
        program: str = SLEEPS,
        *,
        connection: str = CONNECTION,
        times: Times | None = None,
        **settings: Any,
    ) -> KubernetesCluster:
        """One whose pods run this program."""
        return KubernetesCluster(connection, self.namespace.name, self.pods(program, **settings), times)

    def spec(self, **settings: Any) -> RunSpec:
        """Of another incarnation, with no worker at all unless told otherwise: they cost time."""
        return RunSpec(self.name, uuid4().hex, ("python", "train.py"), WorkersSpec(1, 1, 3), **settings)

    def publish(self, ref: RunRef, phase: Phase, **fields: Any) -> Status:
        """Play launcher."""
        status = Status(ref.name, ref.uid, phase, "said the test", utc_now(), **fields)
        metadata = {"annotations": {runobjects.HEADLINE: to_json(headline(status))}}
        change = {"metadata": metadata, "data": {runobjects.STATUS_KEY: to_json(status)}}
        self.namespace.ask(lambda client: client.patch(CONFIG_MAPS, ObjectNames(ref.name).status, change))
        return status

    def launchers(self, ref: RunRef) -> list[Pod]:
        """Its launchers' pods."""
        mine = runobjects.selector(run=ref.name, uid=ref.uid, part=Part.LAUNCHER)
        return self.namespace.ask(lambda client: client.list(PODS, mine))

    def wait_until_launched(self, ref: RunRef) -> None:
        """A pod that is being started when its Secret goes stays for minutes (before Kubernetes 1.27)."""
        until(lambda: any(pod.phase == "Running" for pod in self.launchers(ref)), "its launcher runs")

    def without_workers(self, ref: RunRef) -> None:
        """Only its launcher is of interest."""
        scale = {"spec": {"replicas": 0}}
        self.namespace.ask(lambda client: client.patch(REPLICA_SETS, ObjectNames(ref.name).worker, scale, "scale"))

    def kill(self, pod: Pod) -> None:
        """At once, and without a word."""
        self.namespace.ask(lambda client: client.delete(PODS, pod.name, grace=0))

    def end(self) -> None:
        """Leave nothing."""
        cluster = self.cluster()
        try:
            ref = run(cluster.find(self.name))
            run(cluster.delete(ref, run(cluster.owner(ref))))
        except RunNotFound:
            return
