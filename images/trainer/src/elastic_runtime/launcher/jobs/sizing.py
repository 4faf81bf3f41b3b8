"""Which jobs of workers are submitted and ended next: decided from what is known, without any I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from elastic_runtime.run.jobs import Job, JobState

COMING = 180.0
"""Seconds that an agent has to connect, once it is said that its job runs: a node may boot, an image be fetched."""
UNSEEN = 30.0
"""Seconds after which a job that was submitted, and that is not told of, counts as over."""
COMPLETING = "COMPLETING"
"""Slurm's word for a job that has ended, and is not over."""
SHORT_LIFE = 5.0
"""A job that ran for less seconds and was not asked to end holds its replacement back."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker whose job has been submitted."""

    name: str
    id: str
    submitted: float
    """Seconds of the launcher's clock, as all below."""
    job: Job | None = None
    """As was told last; None: not yet."""
    began: float | None = None
    """When it was first seen running."""
    came: bool = False
    """Its agent has connected."""
    gone: bool = False
    """Its agent is connected no more: its job is about to end."""
    asked_to_end: bool = False

    @property
    def pending(self) -> bool:
        """Whether it does not run yet, as far as is known."""
        return not self.came and (self.job is None or self.job.state is JobState.PENDING)


@dataclass(frozen=True, slots=True)
class Steps:
    """What is to be done."""

    submit: int = 0
    """Jobs to submit."""
    leave: tuple[str, ...] = ()
    """Workers that are to leave in order: their agents get SIGTERM, or their jobs are taken out of the queue."""
    late: tuple[str, ...] = ()
    """Workers whose agents have not connected in time: their jobs are ended."""


def over(worker: Worker, now: float) -> bool:
    """Whether its job has ended."""
    if worker.job is None:
        return now > worker.submitted + UNSEEN
    return worker.job.state is JobState.OVER


def _is_completing(worker: Worker) -> bool:
    """Whether it has left, and Slurm cleans up after it: for as long as an epilog takes, or a node is dead."""
    return worker.gone and worker.job is not None and worker.job.word == COMPLETING


def decide(
    workers: Mapping[str, Worker],
    wanted: int,
    ranks: Mapping[str, int],
    now: float,
    *,
    leaving: Collection[str] = (),
) -> Steps:
    """Return the next steps.

    Args:
        workers: whose jobs are not over.
        wanted: how many there shall be.
        ranks: the lowest rank of each that has one.
        now: the present time.
        leaving: those that have a notice and go by themselves, before others that would go for a smaller size.
    """
    late = tuple(
        worker.name
        for worker in workers.values()
        if worker.began is not None and not worker.came and not worker.asked_to_end and now > worker.began + COMING
    )
    staying = [
        each for each in workers.values() if not (each.asked_to_end or each.name in late or _is_completing(each))
    ]
    # Of those that go, the ones with a notice first, then those that wait in the queue, then those outside of the
    # world, then the highest ranks.
    staying.sort(key=lambda each: (each.name in leaving, each.pending, ranks.get(each.name, math.inf), each.submitted))
    missing = max(0, wanted - len(staying))
    return Steps(missing, tuple(each.name for each in staying[wanted:]), late)
