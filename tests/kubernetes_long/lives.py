"""What lived when, and what is left: the namespace as kubectl shows it beside a test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo_kit.kubernetes_trainings import KubernetesTrainings
from elastic_runtime.run.runobjects import MANAGED_BY_LABEL, PREFIX, UID_LABEL, Part, selector

_LIVE = ("Pending", "Running")


@contextmanager
def launchers_recorded(trainings: KubernetesTrainings, record: Path) -> Iterator[None]:
    """Write down every change of a launcher's pod while the block runs."""
    command = [*_kubectl(trainings), "get", "pods", f"--selector={selector(part=Part.LAUNCHER)}"]
    options = ["--watch", "--output-watch-events", "--output=json"]
    with record.open("wb") as stream, subprocess.Popen([*command, *options], stdout=stream) as kubectl:
        try:
            yield
        finally:
            kubectl.terminate()


def lives(record: Path) -> list[frozenset[str]]:
    """After every change: uids of the runs that had a launcher pod which was neither over nor being deleted."""
    pods: dict[str, str] = {}
    worlds = []
    for event in _documents(record.read_text()):
        pod = event["object"]
        gone = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
        if not gone and pod["status"].get("phase") in _LIVE:
            pods[pod["metadata"]["name"]] = pod["metadata"]["labels"][UID_LABEL]
        else:
            pods.pop(pod["metadata"]["name"], None)
        worlds.append(frozenset(pods.values()))
    return worlds


def left_over(trainings: KubernetesTrainings) -> list[str]:
    """Every object of this package in the namespace, of every kind that the API server can list."""
    kinds = _output([*_kubectl(trainings), "api-resources", "--namespaced", "--verbs=list", "--output=name"]).split()
    # Events tell of what has been; they go by themselves.
    wanted = ",".join(kind for kind in kinds if kind.partition(".")[0] != "events")
    label = f"--selector={MANAGED_BY_LABEL}={PREFIX}"
    return _output([*_kubectl(trainings), "get", wanted, label, "--output=name"]).split()


def _kubectl(trainings: KubernetesTrainings) -> list[str]:
    return ["kubectl", f"--kubeconfig={trainings.kubeconfig}", f"--namespace={trainings.namespace}"]


def _documents(text: str) -> Iterable[Any]:
    """One JSON document after the other; the last may be torn."""
    decoder, position = json.JSONDecoder(), 0
    while (position := _skip_space(text, position)) < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            return
        yield document


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
