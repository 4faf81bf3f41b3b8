"""Jobs of a run in Slurm: what is asked of it, and what it tells. Pure.

A job's comment says which run and which part of it the job is (:func:`comment`), since its name alone could be
anybody's. States and reasons: `squeue(1) <https://slurm.schedmd.com/squeue.html>`_.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.run.jobs import LAUNCHER, NOTICE_TO_ALL, Job, JobState
from elastic_runtime.run.spec import RunSpec

FORMAT = "%i|%T|%e|%N|%r|%k"
"""Of ``squeue``: :func:`read_jobs` reads it. The comment, which is free text, is last."""
SPEC = "slurm.json"
"""File of the :class:`SlurmSpec`, in the run's folder."""
MOST_JOBS = 20_000
"""Lines of an answer that are read."""
_LONGEST = 2000
"""Characters of one of them."""
_PENDING = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
)
_RUNNING = frozenset(
    ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "POWER_UP_NODE")
)


@dataclass(frozen=True, slots=True)
class SlurmSpec:
    """How a run's jobs are submitted."""

    python: str
    """Interpreter of launcher and workers, on the nodes."""
    options: tuple[str, ...] = ()
    """Of ``sbatch``, for workers."""
    launcher_options: tuple[str, ...] = ()
    """The same for the launcher."""
    setup: tuple[str, ...] = ()
    """Lines of a login shell before the program, such as ``module load cuda``."""
    prefix: tuple[str, ...] = ()
    """Words before the program, such as ``apptainer exec --nv image.sif``."""
    grace: float = 30.0
    """Seconds from SIGTERM to the end of a job."""
    exported: tuple[str, ...] = ()
    """Names of variables that jobs inherit from who submits them. Their values are in no file of the run."""


def comment(uid: str, part: str) -> str:
    """Of a job."""
    return f"elastic-training {uid} {part}"


def read_jobs(text: str) -> Iterator[Job]:
    """Jobs of runs among those that ``squeue --format=FORMAT`` has written, with times as seconds since 1970.

    Raises:
        InvalidDocument: it is something else.
    """
    for number, line in enumerate(text.splitlines()):
        if number >= MOST_JOBS:
            raise InvalidDocument(f"squeue tells of more than {MOST_JOBS} jobs")
        fields = line[:_LONGEST].split("|", 5)
        if len(fields) < 6:
            raise InvalidDocument(f"squeue has written {printable(line, 100)!r}, which is not a job")
        if job := job_of(fields):
            yield job


def job_of(fields: Sequence[str]) -> Job | None:
    """Return a job of a run; None: it is another one.

    Args:
        fields: as in :data:`FORMAT`.
    """
    said = fields[5].split(" ")
    if len(said) != 3 or said[0] != "elastic-training":
        return None
    _, run, part = said
    word = fields[1].upper()
    state = JobState.PENDING if word in _PENDING else JobState.RUNNING if word in _RUNNING else JobState.OVER
    end = datetime.fromtimestamp(int(fields[2]), UTC) if re.fullmatch("[0-9]{1,11}", fields[2]) else None
    return Job(fields[0], run, part, state, word, fields[4], fields[3], end)


def script(spec: SlurmSpec, command: Sequence[str]) -> str:
    """Return a batch script that runs a program as the job's one step.

    In a step, since that is what Slurm sends SIGTERM when it preempts a job: all of its processes get it.
    """
    words = shlex.join((*spec.prefix, *command))
    told = f"export {NOTICE_TO_ALL}=1"
    lines = ("#!/bin/bash -l", *spec.setup, told, f"exec srun --nodes=1 --ntasks=1 --export=ALL {words}")
    return "\n".join(lines) + "\n"


def options(spec: SlurmSpec, run: RunSpec, part: str, output: Path) -> list[str]:
    """Return the options of ``sbatch`` for one part of a run.

    Args:
        spec: how jobs are submitted.
        run: whose job it is.
        part: :data:`LAUNCHER`, or a worker's name.
        output: file that it writes, appended to.
    """
    own = spec.launcher_options if part == LAUNCHER else spec.options
    return [
        *own,
        "--parsable",
        f"--job-name={run.name}",
        f"--comment={comment(run.uid, part)}",
        "--nodes=1",
        "--ntasks=1",
        # A job that came again would be another one, with the same name and none of what it had.
        "--no-requeue",
        # As long before the time limit as a preemption would be told of.
        f"--signal=TERM@{max(1, round(spec.grace))}",
        f"--output={output}",
        "--open-mode=append",
        f"--export={','.join(('NIL', *spec.exported))}",
    ]


HOPELESS = {
    "BadConstraints": "no node has what the job asks for: change constraint or gpus",
    "InvalidAccount": "the account is not valid: name another one",
    "InvalidQOS": "the QOS is not valid: name another one",
    "PartitionTimeLimit": "the time limit is longer than the partition allows: shorten time_limit",
    "PartitionNodeLimit": "the partition does not allow so many nodes: name another one",
}
"""Reasons for which a job stays pending until somebody changes it, and what to do. From squeue(1)."""
PASSING = {
    "Resources": "nodes are in use",
    "Priority": "jobs with a higher priority are before it",
    "ReqNodeNotAvail": "nodes that it could use are down, drained or reserved",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition accepts jobs, and starts none",
    "JobHeldUser": 'it is held: "scontrol release" lets it go',
    "JobHeldAdmin": "it is held by an administrator",
    "JobHoldMaxRequeue": "it was requeued too often, and is held",
    "Licenses": "a license is in use",
    "Reservation": "its reservation has not begun",
    "PartitionConfig": "the partition has no node that could run it now",
}
"""Reasons that may pass."""


def why_pending(reason: str) -> tuple[str, bool]:
    """Say why a job is pending, for people, and whether waiting cannot help.

    Args:
        reason: in Slurm's words.
    """
    name = re.split(r"[,_ ]", reason.strip("()"))[0]
    if remedy := HOPELESS.get(name):
        return f"Slurm does not start it ({printable(reason, 100)}): {remedy}", True
    said = PASSING.get(name)
    if said is None and re.match("Assoc|QOS|Max", reason):
        said = "a limit of the account or QOS is reached"
    return f"Slurm has not started it yet ({printable(reason, 100)}{f': {said}' if said else ''})", False
