"""Jobs of a run in a batch system (Slurm, Ray): one is the launcher, each other one is a worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

LAUNCHER = "launcher"
"""Part of a run that is no worker."""
OUTPUTS = "jobs"
"""Folder of what jobs of workers write, in the run's folder."""
NOTICE_TO_ALL = "ELASTIC_RUNTIME_NOTICE_TO_ALL"
"""Variable of workers whose system sends SIGTERM to ranks, too. They ignore it, and end by SIGHUP of their agent."""


class JobState(StrEnum):
    """As far as it matters here."""

    PENDING = "pending"
    RUNNING = "running"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Job:
    """What the system tells of a job."""

    id: str
    run: str
    """Uid of its run."""
    part: str
    """:data:`LAUNCHER`, or a worker's name."""
    state: JobState
    word: str
    """The state in the system's own word."""
    reason: str
    """Why it is pending, or has ended, in the system's words."""
    node: str = ""
    end: datetime | None = None
    """When it ends at the latest, by its time limit or because it is being taken; when it has ended."""
