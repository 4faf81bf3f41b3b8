"""The objects of a run, made and taken apart."""

from __future__ import annotations

from typing import Any

from elastic_runtime.run import runobjects
from elastic_runtime.run.spec import RunSpec, Timing, WorkersSpec
from elastic_training.clusters.kubernetes.manifests.objects import RunObjects, run_objects
from elastic_training.identity.naming import run_name
from elastic_training.settings import Pods

SPEC = RunSpec(
    name=run_name("digits", "manual", "train"),
    uid="5f0c" * 8,
    command=("python", "train.py"),
    workers=WorkersSpec(1, 3, 5, 2),
    timing=Timing(leave_grace=30, stop_grace=10),
)
ROOT_UID = "7f1f4f7e-0000-4000-8000-000000000000"
TLS = {name: name.encode() for name in ("ca.crt", "launcher.crt", "launcher.key", "agent.crt", "agent.key")}


def objects_of(pods: Pods | None = None, spec: RunSpec = SPEC, **more: Any) -> RunObjects:
    return run_objects(spec, "the first try", pods or Pods(image="registry/trainer:1"), namespace="training", **more)


def everything(objects: RunObjects) -> dict[str, dict[str, Any]]:
    made = (objects.root(), *objects.first(ROOT_UID, TLS), *objects.rest(ROOT_UID, "10.96.7.7"))
    found = {f"{each['kind']} {each['metadata']['labels'][runobjects.PART_LABEL]}": each for each in made}
    assert len(found) == len(made)
    return found


def pods_of(objects: RunObjects) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pod templates of launcher and workers."""
    found = everything(objects)
    return found["Job launcher"]["spec"]["template"], found["ReplicaSet worker"]["spec"]["template"]


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(pod["spec"]["containers"][0])
