"""The training runs in a namespace of a Kubernetes that ``tools/cluster`` gives (the cluster of ``KUBECONFIG``)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from typing_extensions import override
from urllib3.exceptions import HTTPError

from demo_kit.airflow_stack import StackFailed
from demo_kit.cluster_folder import ClusterFolder, kubectl
from demo_kit.trainings import Trainings
from elastic_runtime.documents import from_json
from elastic_runtime.run.runobjects import STATUS_KEY, WATCHED, ObjectNames, Part, selector
from elastic_runtime.run.status import Status
from elastic_training import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
CONNECTION = "kubernetes_default"
BUILT_IMAGE = f"localhost/elastic-training/trainer:{__version__}"
"""What ``make image`` builds."""
CLAIM = "digits"
"""Default of the DAG's parameter ``claim``."""
_NOT_FOUND, _FORBIDDEN_YET = 404, 403
"""The second is an API server's answer in its first moments, before it knows anybody's rights."""
_END_TIMEOUT = 90.0
"""Seconds for a namespace's runs to be gone."""


@dataclass(frozen=True, slots=True)
class KubernetesTrainings(Trainings):
    """Trainings in the pods of a cluster."""

    kubeconfig: Path
    namespace: str
    folder: Path
    """That the pods see, too."""
    trainer: Path
    """Interpreter of the trainer's environment, for the tasks before and after the training."""
    more: Mapping[str, object] = field(default_factory=dict)
    """Parameters of the DAG, beside those of :attr:`params`."""
    umask: int = 0
    """Create the folder. Airflow and the pods may write into one folder as different users."""

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        extra = {"kube_config_path": str(self.kubeconfig), "namespace": self.namespace}
        return {
            "AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON": str(self.trainer),
            f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps({"conn_type": "kubernetes", "extra": extra}),
        }

    @property
    @override
    def params(self) -> Mapping[str, object]:
        return {"cluster": CONNECTION, "folder": str(self.folder), **self.more}

    @override
    def status(self, run: str) -> Status | None:
        try:
            found = self._core().read_namespaced_config_map(ObjectNames(run).status, self.namespace)
        except HTTPError:
            return None  # The API server is away, or has just come back: whoever asks, asks again.
        except ApiException as error:
            if error.status in (_NOT_FOUND, _FORBIDDEN_YET):
                return None
            raise
        text = (found.data or {}).get(STATUS_KEY)
        return from_json(Status, text) if text else None

    @override
    def log(self, run: str) -> list[str]:
        """Return the logs of the launchers' remaining pods, oldest first."""
        core = self._core()
        pods = self.pods(run, Part.LAUNCHER)
        pods.sort(key=lambda pod: pod.metadata.creation_timestamp)
        # Not preloaded: the client makes "b'…'" of bytes.
        answers = (
            core.read_namespaced_pod_log(pod.metadata.name, self.namespace, _preload_content=False) for pod in pods
        )
        return [line for answer in answers for line in answer.data.decode().splitlines()]

    def watched(self, run: str) -> bool:
        """Whether a trigger has begun to watch the run since it was claimed."""
        root = self._core().read_namespaced_config_map(ObjectNames(run).root, self.namespace)
        return WATCHED in (root.metadata.annotations or {})

    def pods(self, run: str | None = None, part: Part | None = None) -> list[Any]:
        """Present pods of a run, or of all."""
        return list(self._core().list_namespaced_pod(self.namespace, label_selector=selector(run=run, part=part)).items)

    @override
    def end_all(self) -> None:
        """Delete the runs, and wait until none of their pods is left."""
        core = self._core()
        for root in core.list_namespaced_config_map(self.namespace, label_selector=selector(part=Part.ROOT)).items:
            with suppress(ApiException):
                core.delete_namespaced_config_map(
                    root.metadata.name, self.namespace, propagation_policy="Foreground", grace_period_seconds=0
                )
        deadline = time.monotonic() + _END_TIMEOUT
        while (left := self.pods()) and time.monotonic() < deadline:
            time.sleep(0.5)
        if left:
            raise TimeoutError(f"pods are left in {self.namespace}: {[pod.metadata.name for pod in left]}")

    def _core(self) -> Any:
        return client.CoreV1Api(config.new_client_from_config(str(self.kubeconfig)))


@contextmanager
def prepared_elsewhere(namespace: str, folder: Path, trainer: Path, image: str | None) -> Iterator[KubernetesTrainings]:
    """A namespace with rights in a cluster whose nodes are not this machine, and a volume of its own for the folder.

    Args:
        namespace: made when missing; its runs and its claim are removed in the end, itself stays.
        folder: of this machine; the pods have one of that path on a claim of the StorageClass ``STORAGE_CLASS``, or of
            the cluster's default one.
        trainer: interpreter of the trainer's environment on this machine.
        image: of the trainer, which the nodes have or can pull; None: what ``make image`` has left is loaded into them.

    Raises:
        StackFailed: the cluster cannot run it; the message tells what is missing.
    """
    kubeconfig = Path(os.environ["KUBECONFIG"].split(os.pathsep)[0])
    if image is None:
        _call("tools/cluster", "load", "build/trainer-image.tar")
        image = BUILT_IMAGE
    _call("tools/cluster", "namespace", namespace)
    kubectl(f"--kubeconfig={kubeconfig}", f"--namespace={namespace}", "apply", "--filename=deploy/rbac.yaml")
    place = ClusterFolder(kubeconfig, namespace, CLAIM, folder, image)
    with TemporaryDirectory(prefix="elastic-training-demo-") as beside:
        interpreter = place.interpreter(trainer, Path(beside, "python"))
        template = place.worker_template(Path(beside, "worker.json"))
        more = {"image": image, "worker_template": str(template)}
        trainings = KubernetesTrainings(kubeconfig, namespace, folder, interpreter, more, umask=-1)
        try:
            place.begin(os.environ.get("STORAGE_CLASS") or None)
            yield trainings
        finally:
            trainings.end_all()
            place.end()


@contextmanager
def prepared(namespace: str, folder: Path, trainer: Path) -> Iterator[KubernetesTrainings]:
    """A namespace with rights, the image on the nodes, and a claim that shows the pods a folder of this machine.

    The image is what ``make image`` has left. The nodes have to be this machine, as those of ``tools/cluster``
    without Docker are: the folder is a volume of type hostPath, which Pod Security "restricted" allows behind a claim.
    Whoever writes to it is another user there than here, so it is open to all.

    Args:
        namespace: made when missing; its runs and its claim are removed in the end, itself stays.
        folder: made when missing.
        trainer: interpreter of the trainer's environment on this machine.
    """
    kubeconfig = Path(os.environ["KUBECONFIG"])
    _call("tools/cluster", "load", "build/trainer-image.tar")
    _call("tools/cluster", "namespace", namespace)
    _call("kubectl", f"--namespace={namespace}", "apply", "--filename=deploy/rbac.yaml")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    volume = f"elastic-training-{sha256(f'{namespace}:{folder}'.encode()).hexdigest()[:10]}"
    for manifest in _shared_folder(volume, namespace, folder):
        _call("kubectl", "apply", "--filename=-", text=json.dumps(manifest))
    trainings = KubernetesTrainings(kubeconfig, namespace, folder, trainer)
    try:
        yield trainings
    finally:
        trainings.end_all()
        _call("kubectl", f"--namespace={namespace}", "delete", "pvc", CLAIM, "--wait=false")
        _call("kubectl", "delete", "pv", volume, "--wait=false")


def _shared_folder(volume: str, namespace: str, folder: Path) -> list[dict[str, Any]]:
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": CLAIM},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


def _call(*command: str, text: str | None = None) -> None:
    done = subprocess.run(
        command, cwd=REPOSITORY, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise StackFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stdout.strip()[-3000:]}")
