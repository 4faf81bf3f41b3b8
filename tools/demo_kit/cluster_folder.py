"""The demo's folder in a cluster whose nodes are not this machine: on a claim, with a copy of it here.

A pod holds the claim, and the copies go through it. Most clusters' default StorageClass gives a volume to one node at a
time, so all pods that use the claim are sent to the node of that one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_kit.airflow_stack import StackFailed

POD = "folder"
_LABEL = {"elastic-training-demo": POD}
_POD_TIMEOUT = 180.0
"""Seconds for that pod to run: its image may have to be pulled, and its volume to be made."""
_WRITTEN_THERE = ("checkpoints", "ledger")
"""By the ranks: their own word counts."""
_INTERPRETER = """#!/bin/bash
# The trainer's interpreter, for tasks whose folder is in the cluster: copied here before, and there afterwards.
case "${{1-}}" in *.py) ;; *) exec {python} "$@" ;; esac
set -o pipefail
{kubectl} exec {pod} -- sh -c {there} | tar -C {folder} --no-same-owner -xf - || echo "the folder is not whole here" >&2
{python} "$@" || exit
cd {folder} && shopt -s nullglob && set -- * && [ $# -gt 0 ] || exit 0
tar -cf - {excluded} -- "$@" | {kubectl} exec --stdin {pod} -- tar -C {folder} --no-same-owner --skip-old-files -xf -
"""


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """A folder on a claim of the cluster, with a local copy."""

    kubeconfig: Path
    namespace: str
    claim: str
    folder: Path
    """Its path here and in the pods."""
    image: str
    """Of the trainer."""

    def begin(self, storage_class: str | None = None) -> None:
        """Make claim and pod, and wait for the pod to run.

        Args:
            storage_class: of the claim; None: the cluster's default one.

        Raises:
            StackFailed: it does not run; the message tells what is missing.
        """
        if storage_class is None and not self._has_default_class():
            raise StackFailed(
                "the cluster has no default StorageClass, and the pods of the demo share a volume: "
                "name one, as in `make demo CLUSTER=kubernetes STORAGE_CLASS=standard …`"
            )
        for manifest in (self._claim(storage_class), self._pod()):
            self._kubectl("apply", "--filename=-", text=json.dumps(manifest))
        deadline = time.monotonic() + _POD_TIMEOUT
        while not self._is_ready(pod := json.loads(self._kubectl("get", "pod", POD, "--output=json"))):
            if (why := _hopeless(pod)) or time.monotonic() > deadline:
                raise StackFailed(f"no pod of {self.image} runs in {self.namespace}: {why or _waiting(pod)}")
            time.sleep(1.0)

    def interpreter(self, python: Path, at: Path) -> Path:
        """Write a program that is that interpreter, with the folder copied before and after each script."""
        kubectl = shutil.which("kubectl") or "kubectl"
        there = f'cd {self.folder} && set -- *; [ -e "$1" ] || set -- -T /dev/null; exec tar -cf - "$@"'
        at.write_text(
            _INTERPRETER.format(
                python=shlex.quote(str(python)),
                kubectl=shlex.join((kubectl, f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}")),
                pod=POD,
                there=shlex.quote(there),
                folder=shlex.quote(str(self.folder)),
                excluded=shlex.join(f"--exclude={name}" for name in _WRITTEN_THERE),
            )
        )
        at.chmod(0o700)
        return at

    def worker_template(self, at: Path) -> Path:
        """Write a pod template with which workers run beside the folder."""
        near = {"labelSelector": {"matchLabels": _LABEL}, "topologyKey": "kubernetes.io/hostname"}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
        at.write_text(json.dumps({"spec": {"affinity": affinity}}))
        return at

    def end(self) -> None:
        """Remove pod and claim."""
        self._kubectl("delete", "pod", POD, "--ignore-not-found", "--grace-period=1")
        self._kubectl("delete", "pvc", self.claim, "--ignore-not-found", "--wait=false")

    def _has_default_class(self) -> bool:
        found = json.loads(self._kubectl("get", "storageclasses", "--output=json"))["items"]
        mark = "storageclass.kubernetes.io/is-default-class"
        return any((each["metadata"].get("annotations") or {}).get(mark) == "true" for each in found)

    def _claim(self, storage_class: str | None) -> dict[str, Any]:
        spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        if storage_class is not None:
            spec["storageClassName"] = storage_class
        metadata = {"name": self.claim, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}

    def _pod(self) -> dict[str, Any]:
        container = {
            "name": POD,
            "image": self.image,
            "args": ["python", "-c", "import signal; signal.sigwait({signal.SIGTERM})"],
            "volumeMounts": [{"name": POD, "mountPath": str(self.folder)}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD, "namespace": self.namespace, "labels": _LABEL},
            "spec": {
                "containers": [container],
                "volumes": [{"name": POD, "persistentVolumeClaim": {"claimName": self.claim}}],
                "automountServiceAccountToken": False,
                # As the pods of a run: what one of them writes, the others read.
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 1000,
                    "runAsGroup": 1000,
                    "fsGroup": 1000,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            },
        }

    @staticmethod
    def _is_ready(pod: Any) -> bool:
        found = pod.get("status", {}).get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in found)

    def _kubectl(self, *words: str, text: str | None = None) -> str:
        return kubectl(f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *words, text=text)


def kubectl(*words: str, text: str | None = None) -> str:
    """What it prints. Raises StackFailed with its own words."""
    done = subprocess.run(("kubectl", *words), input=text, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode != 0:
        raise StackFailed(f"kubectl {' '.join(words)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _hopeless(pod: Any) -> str | None:
    """What waiting does not help with."""
    for each in pod.get("status", {}).get("containerStatuses", ()):
        waiting = each["state"].get("waiting", {})
        if waiting.get("reason") in ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"):
            return (
                f"{_waiting(pod)}. Push the image to a registry that the nodes can pull from without a secret, or load "
                "it into the nodes, and name it: IMAGE=registry.example/trainer:1"
            )
        if "terminated" in each["state"] or each.get("restartCount", 0):
            return "it ends at once: IMAGE has to be the trainer's image, or one that is made from it"
    return None


def _waiting(pod: Any) -> str:
    """What Kubernetes says of it."""
    status = pod.get("status", {})
    for each in status.get("containerStatuses", ()):
        if waiting := each["state"].get("waiting"):
            return f"{waiting.get('reason')}: {waiting.get('message', '')}".rstrip(": ")
    unmet = [
        each["message"] for each in status.get("conditions", ()) if each["status"] == "False" and each.get("message")
    ]
    return unmet[0] if unmet else f"it is {status.get('phase', 'not there')}"
