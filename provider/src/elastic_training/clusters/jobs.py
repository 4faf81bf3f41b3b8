"""Launchers of runs in a folder that are jobs of a batch system: what Slurm and Ray have in common here."""

from __future__ import annotations

import math
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from typing_extensions import override

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.run.jobs import LAUNCHER, Job, JobState
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.status import WorkerStatus
from elastic_training.clusters.claims import Times
from elastic_training.clusters.folder import STARTER, LauncherHost

TIMES = Times(claim=240.0, order=math.inf, delete=180.0, delete_order=90.0, creation=0.0)
"""As of this machine's runs; a batch system takes longer to end jobs."""
LOOK = 3.0
"""Seconds for which one answer about all jobs is used."""
OUTAGE = 15.0
"""Seconds for which it is not asked again once it has not answered."""
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,252}")
_LONGEST = 4096
"""Bytes of a starter's file."""


@dataclass(frozen=True, slots=True)
class LauncherJob:
    """Content of ``starter.json``."""

    job: str
    submitted: float
    """Seconds since 1970."""


class SeenJobs:
    """What a system tells of jobs, asked for once in a while however many ask. For threads.

    Args:
        system: its name, for people.
        ask: asks it; raises ClusterUnavailable.
    """

    def __init__(self, system: str, ask: Callable[[], Iterable[Job]]) -> None:
        self._system, self._ask = system, ask
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._asked = self._answered = self._failed = -math.inf

    def jobs(self, newer_than: float = -math.inf) -> Mapping[str, Job]:
        """By id. Raises ClusterUnavailable, for :data:`OUTAGE` without asking again: each answer takes long then.

        Args:
            newer_than: seconds since 1970; an answer of before is not used.
        """
        with self._lock:
            now = time.time()
            if now - LOOK < self._answered <= now and self._asked > newer_than:
                return self._jobs
            if now - OUTAGE < self._failed <= now:
                raise ClusterUnavailable(f"{self._system} has not answered a moment ago")
            try:
                self._jobs = {job.id: job for job in self._ask()}
            except (ClusterUnavailable, InvalidSettings) as error:
                self._failed = time.time()
                # A look that is refused says nothing of runs that are there: they go on.
                raise ClusterUnavailable(str(error)) from error
            self._asked, self._answered = now, time.time()
            return self._jobs


class JobHost(LauncherHost):
    """Launchers as jobs.

    Args:
        seen: the system's jobs.
    """

    setting = "cluster"

    def __init__(self, seen: SeenJobs) -> None:
        self._seen = seen

    @abstractmethod
    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs; no harm where one has ended."""

    @override
    def alive(self, run: RunDir) -> bool:
        """Whether its job waits or runs. While the system does not tell, it does: nothing is ended on a guess."""
        starter = read_starter(run)
        if starter is None:
            return False
        try:
            job = self._seen.jobs(starter.submitted).get(starter.job)
            return (job is not None and job.state is not JobState.OVER) or bool(self._launchers(run))
        except ClusterUnavailable:
            return True

    def why(self, reason: str) -> str:
        """Say why a job waits, in a sentence.

        Args:
            reason: in the system's words.
        """
        return printable(reason, 200)

    @override
    def waits(self, run: RunDir) -> str:
        starter = read_starter(run)
        if starter is not None:
            with suppress(ClusterUnavailable):
                job = self._seen.jobs(starter.submitted).get(starter.job)
                if job is not None and job.state is JobState.PENDING:
                    return f"the launcher's job {printable(job.id, 100)} is in the queue: {self.why(job.reason)}"
        return ""

    @override
    def kill(self, run: RunDir) -> None:
        if starter := read_starter(run):
            others: list[str] = []
            with suppress(ClusterUnavailable):
                others = self._launchers(run)
            self.cancel(sorted({starter.job, *others}))

    def _launchers(self, run: RunDir) -> list[str]:
        """Ids of those that wait or run. Of two, one serves the run: a submission that failed may be there."""
        try:
            return [job.id for job in self._jobs_of(run) if job.part == LAUNCHER]
        except ClusterUnavailable:
            raise
        except ElasticError:  # Its folder is removed at this moment.
            return []

    def _jobs_of(self, run: RunDir) -> list[Job]:
        """Those that wait or run."""
        uid = run.read_spec().uid
        return [job for job in self._seen.jobs().values() if job.run == uid and job.state is not JobState.OVER]

    @override
    def tidy(self, run: RunDir) -> None:
        self.cancel([job.id for job in self._jobs_of(run)])

    @override
    def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:
        # Its agent says what node it is on.
        return ("ssh", "--", worker.node) if _HOST.fullmatch(worker.node) else ()


def write_starter(run: RunDir, job: str, submitted: float) -> None:
    """Note which job is the run's launcher.

    Args:
        run: whose it is.
        job: its id.
        submitted: seconds since 1970, of before it was submitted.
    """
    write_atomically(run.path / STARTER, to_json(LauncherJob(job, submitted)))


def read_starter(run: RunDir) -> LauncherJob | None:
    """Which job is the run's launcher; None: it cannot be read."""
    with suppress(ElasticError, OSError):
        return from_json(LauncherJob, read_bytes(run.path / STARTER, _LONGEST).decode())
    return None
