"""The launcher of a run as a job of Ray: what is asked of Ray's API, and what it tells. Pure.

See the `Ray Jobs REST API <https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html>`_.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.run.jobs import LAUNCHER, Job, JobState
from elastic_runtime.run.spec import RunSpec

SPEC = "ray.json"
"""File of the :class:`RaySpec`, in the run's folder."""
MOST_JOBS = 100_000
"""Entries of an answer that are read."""
_RUN, _PART = "elastic_training_run", "elastic_training_part"
"""Keys of a job's metadata."""
_STATES = {"PENDING": JobState.PENDING, "RUNNING": JobState.RUNNING}


@dataclass(frozen=True, slots=True)
class RaySpec:
    """How a run's launcher is submitted, and what its workers want."""

    python: str
    """Interpreter of launcher and workers, on the nodes. It has Ray."""
    demands: dict[str, Any] = field(default_factory=dict)
    """Options of a worker's actor: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``, ``label_selector``,
    ``scheduling_strategy``."""
    launcher_demands: dict[str, Any] = field(default_factory=dict)
    """The same for the launcher. Empty: it is on the head node, and takes nothing."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Ray's runtime environment of launcher and workers."""
    grace: float = 30.0
    """Seconds from SIGTERM to a process' end."""
    shown: dict[str, str] = field(default_factory=dict)
    """Whose run it is, for those who look at Ray: ``dag_id``, ``task_id``, ``run_id``, ``page``, …"""


def job_id(run: RunSpec) -> str:
    """Return the submission id of a run's launcher."""
    return f"{run.name}-{run.uid[:12]}"


def submission(spec: RaySpec, run: RunSpec, folder: Path, log: Path) -> dict[str, Any]:
    """Return the body of the request that submits a run's launcher.

    Args:
        spec: how it is submitted.
        run: whose launcher it is.
        folder: of the run.
        log: file to which it appends what it writes.
    """
    command = shlex.join((spec.python, "-m", "elastic_runtime.launcher", str(folder)))
    stopping = {"RAY_JOB_STOP_WAIT_TIME_S": str(max(60, round(spec.grace)))}
    variables = {**stopping, **spec.runtime_env.get("env_vars", {})}
    return {
        "submission_id": job_id(run),
        "entrypoint": f"exec {command} >>{shlex.quote(str(log))} 2>&1",
        "runtime_env": {**spec.runtime_env, "env_vars": variables},
        "metadata": {**spec.shown, _RUN: run.uid, _PART: LAUNCHER, "name": run.name},
        **{f"entrypoint_{name}": value for name, value in spec.launcher_demands.items()},
    }


def shown_as(worker: str, shown: Mapping[str, str]) -> str:
    """Return the words for a worker's actor that Ray shows to people."""
    if not shown:
        return worker
    task, run, page = (shown.get(name, "") for name in ("task_id", "run_id", "page"))
    return f"{worker} of {shown.get('dag_id', '')}.{task}, run {run}{f': {page}' if page else ''}"


def read_jobs(answer: Any) -> Iterator[Job]:
    """Jobs of runs among those that Ray tells of. Raises InvalidDocument if it is something else."""
    if not isinstance(answer, list) or len(answer) > MOST_JOBS:
        raise InvalidDocument("Ray's list of jobs is not one, or too long")
    for each in answer:
        metadata = each.get("metadata") if isinstance(each, dict) else None
        if not isinstance(metadata, dict):
            continue
        said = [each.get("submission_id"), metadata.get(_RUN), metadata.get(_PART), each.get("status")]
        if all(isinstance(text, str) and text for text in said):
            number, run, part, word = said
            message = each.get("message") or ""
            yield Job(number, run, part, _STATES.get(word, JobState.OVER), word, printable(str(message), 300))


def lacking(nodes: Sequence[Any], demands: Mapping[str, Any]) -> str:
    """Say what no node of the cluster has at all. Empty: one has it, though it may be in use.

    Args:
        nodes: as ``ray.nodes()`` tells of them.
        demands: of a worker.
    """
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    wanted = {names[name]: value for name, value in demands.items() if name in names}
    wanted.update(demands.get("resources", {}))
    labels = dict(demands.get("label_selector", {}))

    def has(node: Any) -> bool:
        total = node.get("Resources", {})
        plain = {name: value for name, value in labels.items() if not value.startswith(("!", "in(", "!in("))}
        return all(total.get(name, 0) >= value for name, value in wanted.items()) and all(
            node.get("Labels", {}).get(name) == value for name, value in plain.items()
        )

    if any(node.get("Alive") and has(node) for node in nodes):
        return ""
    words = [f"{value:g} {name}" for name, value in wanted.items()]
    return printable(", ".join([*words, *(f"{name}={value}" for name, value in labels.items())]), 200)


def why_pending(reason: str) -> tuple[str, bool]:
    """Say why a worker's actor is pending, for people, and whether waiting cannot help.

    An autoscaler may bring a node that has what none has now, so waiting may always help.
    """
    if reason.startswith(NO_NODE):
        return f"Ray cannot place it: {reason}. Ask for less in Ray(...), or add such a node to the cluster", False
    return f"Ray has not started it yet ({reason})", False


NO_NODE = "no node has "
IN_USE = "its resources are in use, or its runtime environment is being set up"
