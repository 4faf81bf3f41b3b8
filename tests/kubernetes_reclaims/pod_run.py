"""Real runs with scripted events, whose ranks are in pods: of a cluster whose nodes are this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from demo_kit.kubernetes_trainings import CLAIM
from elastic_runtime.errors import OwnershipLost, RunNotFound
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run.runobjects import PART_LABEL, Part, selector
from elastic_runtime.run.spec import RunSpec, Timing, WorkersSpec
from elastic_runtime.run.status import Phase, Status, WorkerState
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.types import ClaimOutcome
from elastic_training.concurrency.bridge import run
from elastic_training.settings import Pods, PodShape, Volume
from tests.kubernetes_namespace import CONNECTION, IMAGE, STARVED, Namespace
from tests.paced import ResizedRun, Script

TIMING = Timing(heartbeat=STARVED, stop_grace=2.0, leave_grace=6.0, gather=120.0, tick=0.1)
"""A run begins with all its workers, however long one's pod takes on a busy machine."""
POOL = "elastic-training-tests/pool"
"""Label of nodes with room for workers; launchers go anywhere."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where runs are."""

    namespace: Namespace
    folder: Path
    """That the pods see under the same path; the scripts are in it."""
    image: str = IMAGE
    memory: str | None = None
    """Limit of each worker. None: there is none."""

    @property
    def cluster(self) -> KubernetesCluster:
        """Whose runs have pods of their own."""
        return KubernetesCluster(CONNECTION, self.namespace.name, self.pods)

    @property
    def pods(self) -> Pods:
        """They see the folder; no two workers share a node."""
        volume = Volume(mount=str(self.folder), claim=CLAIM)
        others = {"labelSelector": {"matchLabels": {PART_LABEL: Part.WORKER}}, "topologyKey": "kubernetes.io/hostname"}
        alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [others]}}
        resources = {"limits": {"memory": self.memory}} if self.memory else None
        worker = PodShape(resources=resources, node_selector={POOL: "yes"}, affinity=alone)
        return Pods(image=self.image, image_pull_policy="IfNotPresent", volumes=[volume], worker=worker)

    def offer(self, room: bool) -> None:
        """Have room for workers that come from now on, or none; those that are there stay."""
        self.namespace.kubectl("label", "nodes", "--all", "--overwrite", f"{POOL}=yes" if room else f"{POOL}-")

    @property
    def scripts(self) -> Path:
        """What is in ``tests/local/scripts``."""
        return self.folder / "scripts"


class PodRun(ResizedRun):
    """One run, from its claim to its last pod.

    Args:
        place: where.
        script: what the ranks run.
        workers: minimum, start and maximum.
        name: of the run; a new one unless given.
        slots: ranks of each worker.
        base: a folder that its pods see; a new one unless given.
        spec: further fields of the RunSpec.
    """

    max_wait = 240.0

    def __init__(
        self,
        place: Place,
        script: Script,
        workers: tuple[int, int, int],
        name: str | None = None,
        slots: int = 1,
        base: Path | None = None,
        **spec: Any,
    ) -> None:
        uid = uuid4().hex
        super().__init__(base or place.folder / uid, script)
        for folder in (self.base, *self.base.iterdir()):
            folder.chmod(0o777)  # ranks are another user
        self._place, self._cluster = place, place.cluster
        minimum, start, maximum = workers
        self.spec = RunSpec(
            name=name or f"paced-{uid[:10]}",
            uid=uid,
            command=script.command(place.scripts),
            workers=WorkersSpec(minimum, start, maximum, slots),
            environment=self.environment(spec.pop("environment", {})),
            timing=spec.pop("timing", TIMING),
            **spec,
        )

    # Life

    def start(self, *, fresh: bool = False) -> ClaimOutcome:
        """Claim it, as the next try of a task does."""
        claim = run(self._cluster.claim(self.spec, self.spec.uid, fresh=fresh))
        self.ref = claim.ref
        return claim.outcome

    def finish(self) -> Status:
        """End every hold, await the run's end, and return the final status."""
        self.go_on()
        self.until(self.is_over, "the run is over", alive=False)
        status = self.status()
        assert status.phase is Phase.SUCCEEDED, self.report("no success")
        return status

    def close(self) -> None:
        """Whatever has become of the test: leave nothing behind."""
        try:
            run(self._cluster.delete(self.ref, self.spec.uid))
        except (RunNotFound, OwnershipLost):
            return  # It was replaced.
        assert self._place.namespace.left(self.ref.name) == []

    # Looking

    def look(self) -> Status | None:
        try:
            return run(self._cluster.status(self.ref))
        except RunNotFound:
            return None

    def is_over(self) -> bool:
        status = self.look()
        return status is None or status.phase.final

    def log(self) -> str:
        """See :class:`PacedRun`. Of the launcher's present pod, if there is one."""
        label = selector(run=self.ref.name, part=Part.LAUNCHER)
        return self._kubectl("logs", f"--selector={label}", "--tail=100")

    def pods(self, part: Part | None = None) -> list[str]:
        """Names of those that are there, even if they are about to go."""
        label = selector(run=self.ref.name, part=part)
        return self._kubectl("get", "pods", f"--selector={label}", "--output=name").split()

    def present(self) -> set[str]:
        """Names of the workers that train."""
        return {worker.name for worker in self.status().workers if worker.state is WorkerState.TRAINING}

    def read(self, worker: str, path: str) -> str:
        """A file, as that worker's ranks see it."""
        return self._kubectl("exec", WorkerName.parse(worker).pod, "--container=worker", "--", "cat", path)

    # Making things happen

    def resize(self, workers: int) -> None:
        assert not run(self._cluster.ask(self.ref, workers, uuid4().hex)).done

    def delete_pods(self, part: Part) -> None:
        """As an eviction does, with the grace period of the pods; returns at once."""
        self._kubectl("delete", "pods", f"--selector={selector(run=self.ref.name, part=part)}", "--wait=false")

    def delete_worker(self, name: str) -> None:
        """As :meth:`delete_pods`, of that worker's alone."""
        self._kubectl("delete", "pod", WorkerName.parse(name).pod, "--wait=false")

    def kill_launcher(self) -> None:
        """Without a word, and for good."""
        self._place.namespace.kill_launcher(self.ref.name)

    def kill_worker(self, name: str) -> None:
        """Its pod, at once and without a word: as where its node is switched off."""
        self._kubectl("delete", "pod", WorkerName.parse(name).pod, "--grace-period=0", "--force", "--wait=false")

    def kill_rank(self, rank: int) -> None:
        self._kubectl(
            "exec", WorkerName.parse(self.worker(rank).name).pod, "--", "sh", "-c", f"kill -9 {self.rank_pid(rank)}"
        )

    def _kubectl(self, *words: str) -> str:
        return self._place.namespace.kubectl(*words)
