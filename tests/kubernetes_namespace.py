"""A namespace of the cluster of KUBECONFIG for tests: restricted, with rights for launchers; and a connection to it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from elastic_runtime.kubernetes.client import Client
from elastic_runtime.run.runobjects import ObjectNames, Part, selector
from elastic_training.clusters.kubernetes import connection
from elastic_training.concurrency import bridge
from elastic_training.settings import Pods, Volume

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parent.parent
RIGHTS = REPOSITORY / "deploy" / "rbac.yaml"
CONNECTION = "tests"
"""Id of the Airflow connection."""
IMAGE = os.environ.get("ELASTIC_TRAINING_TEST_IMAGE") or "localhost/elastic-training/trainer:0.1.0"
TRAINING = Path(__file__).parent / "contract" / "training"
STARVED = 3.0
"""Seconds between two heartbeats. A worker whose world stands is lost after two and a half of them, and pods that
request no CPU may have none for a second or two where many others are tested beside them."""
_CODE = "training-code"
"""ConfigMap with the training script."""
_MOUNT = "/training"
EVERY_KIND = "configmaps,secrets,services,jobs,replicasets,networkpolicies,pods"


@dataclass(frozen=True, slots=True)
class Namespace:
    """One that is ready for runs."""

    name: str

    @property
    def pods(self) -> Pods:
        """Of runs of ``tests/contract/training/train.py``."""
        return Pods(image=IMAGE, image_pull_policy="IfNotPresent", volumes=[Volume(mount=_MOUNT, config_map=_CODE)])

    @property
    def script(self) -> str:
        """The training script, in the pods."""
        return f"{_MOUNT}/train.py"

    def ask(self, question: Callable[[Client], Awaitable[T]], connection_id: str = CONNECTION) -> T:
        """The API server, to look at objects, and to break them; with the rights of an Airflow connection."""

        async def asking() -> T:
            async with connection.client(await connection.access_of(connection_id), self.name) as client:
                return await question(client)

        return bridge.run(asking())

    def refusal(self, manifest: Mapping[str, Any]) -> str:
        """What the server says to an object that it would not create; empty: it would.

        kubectl compares the fields with the server's own schema.
        """
        words = ("create", "--dry-run=server", "--validate=true", "--filename=-")
        try:
            self.kubectl(*words, text=json.dumps(manifest))
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        return ""

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """What it prints. Raises CalledProcessError."""
        command = ["kubectl", f"--namespace={self.name}", *words]
        try:
            return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise

    def kill_launcher(self, run: str) -> None:
        """Without a word, and for good."""
        self.kubectl("delete", "job", ObjectNames(run).launcher, "--cascade=orphan")
        of_run = selector(run=run, part=Part.LAUNCHER)
        self.kubectl("delete", "pods", f"--selector={of_run}", "--force", "--grace-period=0")

    def left(self, run: str) -> list[str]:
        """Objects of that run, of every kind that runs are made of."""
        return self.kubectl("get", EVERY_KIND, f"--selector={selector(run=run)}", "--output=name").split()


def prepare(name: str) -> Namespace:
    """Make it, or bring it up to date. Needs KUBECONFIG, and the image on the nodes."""
    subprocess.run(["tools/cluster", "namespace", name], cwd=REPOSITORY, check=True, capture_output=True)
    namespace = Namespace(name)
    namespace.kubectl("apply", f"--filename={RIGHTS}")
    code: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _CODE}}
    code["data"] = {path.name: path.read_text() for path in TRAINING.glob("*.py")}
    namespace.kubectl("apply", "--filename=-", text=json.dumps(code))
    extra = {"kube_config_path": os.environ["KUBECONFIG"], "namespace": name}
    os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = json.dumps({"conn_type": "kubernetes", "extra": extra})
    # Airflow's way to a connection over an event loop has a thread of its own, which stays.
    asyncio.run(connection.access_of(CONNECTION))
    connection.forget()
    return namespace
