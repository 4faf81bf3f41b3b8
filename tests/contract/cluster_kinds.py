"""The kinds of clusters that the contract is checked on, and what it needs to have happen to their runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from elastic_runtime.errors import FailureKind, OwnershipLost, RunNotFound
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.ray.jobs import RaySpec
from elastic_runtime.run import runobjects
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.spec import RunSpec, Timing, WorkersSpec
from elastic_runtime.slurm.jobs import SlurmSpec
from elastic_runtime.spark.jobs import SparkSpec
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.kubernetes.pools import NamespacePools
from elastic_training.clusters.local import TIMES, LocalCluster
from elastic_training.clusters.location import RayName, SlurmName, SparkName
from elastic_training.clusters.pool import PoolCluster
from elastic_training.clusters.ray import RayCluster
from elastic_training.clusters.slurm import SlurmCluster
from elastic_training.clusters.spark import SparkCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.settings import Workers
from elastic_training.settings.training_pool import PodPool
from tests import paced
from tests.contract.distribution.sqlite_place import SqlitePlace
from tests.kubernetes_namespace import CONNECTION, STARVED, Namespace

OWNER = "the first try"
TRAINING = Path(__file__).parent / "training" / "train.py"


class Kind(ABC):
    """One kind of cluster, and what the contract needs to have happen to its runs."""

    cluster: Cluster
    tells_who_asked = False
    """Whether a launcher reads there who has asked for a size."""

    def __init__(self) -> None:
        self.name = f"contract-{uuid4().hex[:10]}"

    def spec(self, *, start: int = 1, maximum: int = 3, environment: dict[str, str] | None = None) -> RunSpec:
        """Of a training that goes on until :meth:`finish`."""
        return RunSpec(
            name=self.name,
            uid=uuid4().hex,
            command=self.command(),
            workers=WorkersSpec(1, start, maximum),
            environment=environment or {},
            timing=Timing(heartbeat=STARVED, stop_grace=2.0, leave_grace=5.0, tick=0.1),
        )

    def close(self) -> None:
        """Leave nothing running."""
        try:
            ref = run(self.cluster.find(self.name))
            run(self.cluster.delete(ref, run(self.cluster.owner(ref))))
        except (RunNotFound, OwnershipLost):
            return

    @abstractmethod
    def command(self) -> tuple[str, ...]:
        """Of a rank."""

    @abstractmethod
    def finish(self, ref: RunRef) -> None:
        """Have the training end well."""

    @abstractmethod
    def break_ranks(self, ref: RunRef) -> None:
        """Have the ranks end with an error, as often as they are started."""

    @abstractmethod
    def kill_launcher(self, ref: RunRef) -> None:
        """End the launcher without a word."""


class FakeKind(Kind):
    """In memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = self._fake = FakeCluster()

    def command(self) -> tuple[str, ...]:
        return ("python", "train.py")

    def finish(self, ref: RunRef) -> None:
        self._fake.write_log(ref.name, "the last words")
        self._fake.succeed(ref.name)

    def break_ranks(self, ref: RunRef) -> None:
        self._fake.fail(ref.name, FailureKind.RANK_FAILED, "rank 0 ended with code 3")

    def kill_launcher(self, ref: RunRef) -> None:
        self._fake.fail(ref.name, FailureKind.LAUNCHER_LOST, "the launcher is gone without a final status")


class LocalKind(Kind):
    """Real launcher, agents and Horovod ranks, on this machine."""

    tells_who_asked = True

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__()
        self.folder = folder
        self.cluster = LocalCluster(folder / "runs", python, replace(TIMES, delete=30.0, delete_order=15.0), poll=0.05)

    def command(self) -> tuple[str, ...]:
        return ("python", str(TRAINING), str(self.folder / "word"))

    def finish(self, ref: RunRef) -> None:
        (self.folder / "word").write_text("finish")

    def break_ranks(self, ref: RunRef) -> None:
        (self.folder / "word").write_text("break")

    def kill_launcher(self, ref: RunRef) -> None:
        os.kill(RunDir(self.folder / "runs" / ref.name).read_launcher().pid, signal.SIGKILL)


POOL = PoolSettings("contract", 1, 4)


class PoolKind(LocalKind):
    """The same with workers of a pool, which is up for all tests."""

    def __init__(self, folder: Path, python: str, root: Path) -> None:
        super().__init__(folder, python)
        self._root = root
        times = replace(TIMES, delete=30.0, delete_order=15.0)
        self.cluster = PoolCluster(root, python, POOL.name, times=times, poll=0.05)

    def spec(self, *, start: int = 1, maximum: int = 3, environment: dict[str, str] | None = None) -> RunSpec:
        spec = super().spec(start=start, maximum=maximum, environment=environment)
        return replace(spec, pool=PoolSpec(POOL.name))

    def kill_launcher(self, ref: RunRef) -> None:
        os.kill(RunDir(self._root / ref.name).read_launcher().pid, signal.SIGKILL)


class SqliteKind(LocalKind):
    """The place of docs/extending.md; as on this machine, real launchers, agents and ranks."""

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__(folder, python)
        self.cluster = Cluster(SqlitePlace(folder / "place", python))

    def kill_launcher(self, ref: RunRef) -> None:
        os.kill(RunDir(self.folder / "place" / f"{ref.name}-{ref.uid}").read_launcher().pid, signal.SIGKILL)


class SlurmKind(LocalKind):
    """Launcher and workers as jobs of a real Slurm: see ``tools/slurm``."""

    def __init__(self, folder: Path, python: str, connection: str = "") -> None:
        super().__init__(folder, python)
        spec = SlurmSpec(
            python, options=("--partition=low", "--cpus-per-task=1"), launcher_options=("--partition=high",)
        )
        self.cluster = SlurmCluster(SlurmName(str(folder / "runs"), connection), spec)


def slurmrestd_connection() -> str:
    """Id of an Airflow connection to the lab's slurmrestd, in a variable of this process."""
    command = ["scontrol", "token", "username=root", "lifespan=7200"]
    token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    content = {"conn_type": "http", "host": os.environ["SLURM_LAB_REST"], "login": "root"}
    content["password"] = token.removeprefix("SLURM_JWT=")
    os.environ["AIRFLOW_CONN_SLURMRESTD"] = json.dumps(content)
    return "slurmrestd"


class SparkKind(LocalKind):
    """Workers as tasks of a real Spark: see ``tools/spark``."""

    def __init__(self, folder: Path, python: str) -> None:
        super().__init__(folder, python)
        found = json.loads(os.environ["SPARK_LAB"])
        spec = SparkSpec(found["master"], python, found["python"])
        times = replace(TIMES, delete=60.0, delete_order=30.0)
        self.cluster = SparkCluster(SparkName(found["master"], str(folder / "runs")), spec, times, poll=0.05)


class RayKind(LocalKind):
    """Launcher as a job, workers as actors of a real Ray: see ``tools/ray``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "")
        name = RayName(f"http://{os.environ['RAY_LAB']}", str(folder / "runs"))
        self.cluster = RayCluster(name, RaySpec(os.environ["RAY_LAB_PYTHON"], {"num_cpus": 1}))


class KubernetesKind(Kind):
    """Real launcher, agents and Horovod ranks, in pods."""

    tells_who_asked = True

    def __init__(self, namespace: Namespace) -> None:
        super().__init__()
        self.cluster = KubernetesCluster(CONNECTION, namespace.name, namespace.pods)
        self._namespace = namespace
        self._word = f"/tmp/word-{self.name}"
        """File in every worker's pod."""

    def close(self) -> None:
        super().close()
        connection.forget()

    def command(self) -> tuple[str, ...]:
        return ("python", self._namespace.script, self._word)

    def finish(self, ref: RunRef) -> None:
        self._say(ref, "finish")

    def break_ranks(self, ref: RunRef) -> None:
        self._say(ref, "break")

    def kill_launcher(self, ref: RunRef) -> None:
        self._namespace.kill_launcher(ref.name)

    def _say(self, ref: RunRef, word: str) -> None:
        told: set[str] = set()
        script = f"echo -n {word} > {self._word}.new; mv {self._word}.new {self._word}"

        def all_told() -> bool:
            pods = self._running(ref) - told
            for pod in pods:
                # A pod may be over before the API server says so, and a rank that hears the word at once may be over,
                # and with it this shell, before the shell's end is told. The next look tells it from a failure.
                with suppress(subprocess.CalledProcessError):
                    self._namespace.kubectl("exec", pod, "--", "sh", "-c", script)
                    told.add(pod)
            return not pods

        paced.until(all_told, f"each running worker has been told to {word}", pause=0.2)

    def _running(self, ref: RunRef) -> set[str]:
        """Pods of workers in which a program can still be started."""
        of_run = runobjects.selector(run=ref.name, part=Part.WORKER)
        found = json.loads(self._namespace.kubectl("get", "pods", f"--selector={of_run}", "--output=json"))["items"]
        return {
            pod["metadata"]["name"]
            for pod in found
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
        }


class PodPoolKind(KubernetesKind):
    """The same with workers of a pool in pods, which is up for all tests."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace)
        self.cluster = KubernetesCluster(CONNECTION, namespace.name, PodPool(POOL.name))

    def spec(self, *, start: int = 1, maximum: int = 3, environment: dict[str, str] | None = None) -> RunSpec:
        spec = super().spec(start=start, maximum=maximum, environment=environment)
        return replace(spec, pool=PoolSpec(POOL.name))

    def _running(self, ref: RunRef) -> set[str]:
        workers = run(self.cluster.status(ref)).workers
        return {WorkerName.parse(each.name).pod for each in workers if not each.state.gone}


@contextmanager
def pod_pool(namespace: Namespace) -> Iterator[None]:
    """Have the pool up; nothing of it is left afterwards."""
    pools = NamespacePools(CONNECTION, namespace.name)
    run(pools.have_up(PodPool(POOL.name, POOL, namespace.pods.of_run(Workers(1, 1, 1)))))
    try:
        paced.until(lambda: any(each.free for each, _ in run(pools.list())), "a warm worker", 240.0)
        yield
    finally:
        run(pools.take_down(POOL.name))
        connection.forget()


@contextmanager
def leaving_nothing(namespace: Namespace) -> Iterator[KubernetesKind]:
    """A kind of which no object of its run is left in the end."""
    made = KubernetesKind(namespace)
    try:
        yield made
    finally:
        made.close()
        assert namespace.left(made.name) == []


def trainer_python() -> str:
    """The interpreter with torch and horovod: that of ELASTIC_TRAINING_TRAINER_PYTHON."""
    named = os.environ.get("ELASTIC_TRAINING_TRAINER_PYTHON", "")
    python = shutil.which(named) if named else None
    assert python, "ELASTIC_TRAINING_TRAINER_PYTHON has to name a Python with elastic-runtime[horovod]"
    return python
