"""Names of runs: deterministic, so that a later try, a sensor or a person finds the run of a task; and names alike."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

MAX_LENGTH = 52
"""Characters. Kubernetes allows 63 in a label; the rest is for suffixes such as ``-worker-x7k2p``."""
_HASH_LENGTH = 16
"""Characters in base 32: 80 bits."""
_NAMED = 20
"""Names that a message lists, where none is alike."""
_NOT_ALLOWED = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """A task of a DAG run of a deployment of Airflow, whose tries all have one run."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    deployment: str = ""

    @property
    def name(self) -> str:
        """Return the name of the task's run."""
        return run_name(self.dag_id, self.run_id, self.task_id, self.map_index, self.deployment)

    def is_that_of(self, other: TaskIdentity) -> bool:
        """Whether both are one task, in whichever deployment of Airflow."""
        return replace(self, deployment=other.deployment) == other


def run_name(dag_id: str, run_id: str, task_id: str, map_index: int = -1, deployment: str = "") -> str:
    """Name of the training run that this task has in this DAG run, the same for all tries.

    A readable prefix from dag and task, and 80 bits of a hash over all five, which alone makes it unique.

    Args:
        dag_id: of the DAG.
        run_id: of the DAG run.
        task_id: of the training task.
        map_index: of a mapped task; -1: not mapped.
        deployment: of Airflow; empty: not known.

    Returns:
        ``[a-z]([-a-z0-9]*[a-z0-9])?``, at most :data:`MAX_LENGTH` characters: with a suffix still a name for every kind
        of Kubernetes object, a Service too, which must begin with a letter.
    """
    identity = json.dumps([*([deployment] if deployment else ()), dag_id, run_id, task_id, map_index])
    digest = base64.b32encode(hashlib.sha256(identity.encode()).digest()).decode().lower()[:_HASH_LENGTH]
    words = [_NOT_ALLOWED.sub("-", part.lower()).strip("-") for part in (dag_id, task_id)]
    if map_index >= 0:
        words.append(str(map_index))
    prefix = "-".join(word for word in words if word)
    if not prefix[:1].isalpha():
        prefix = f"run-{prefix}"
    return f"{prefix[: MAX_LENGTH - _HASH_LENGTH - 1].strip('-')}-{digest}"


def similar(name: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """Which names may be meant, for people."""
    ids = sorted(known)
    near = get_close_matches(name, ids, n=3) or [each for each in ids if each.endswith(f".{name}")]
    if near:
        return f"Do you mean {' or '.join(map(repr, near))}?"
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"There are {', '.join(map(repr, ids[:_NAMED]))}{more}"
