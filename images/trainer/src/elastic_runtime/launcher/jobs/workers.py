"""Worker set of jobs: :class:`JobWorkers` does in a batch system what a ReplicaSet does on Kubernetes.

Each worker is a job that runs an agent. The system's own priorities, limits and resources decide when it runs; why it
does not yet is told by :meth:`JobWorkers.refusal`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.launcher.decision.backoff import backoff_policy
from elastic_runtime.launcher.decision.facts import Refusal
from elastic_runtime.launcher.folder.platform import FolderWorkers
from elastic_runtime.launcher.jobs.sizing import COMING, SHORT_LIFE, UNSEEN, Steps, Worker, decide, over
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.jobs import LAUNCHER, OUTPUTS, Job, JobState
from elastic_runtime.run.reading import last_line
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec

SOON = 2.0
"""Seconds between two looks at the jobs while one is awaited; otherwise :attr:`JobQueue.later`."""
PATIENCE = 15.0
"""Seconds in the queue after which it is told why a job is there."""
WELL = ("COMPLETED", "SUCCEEDED")
"""Words of Slurm and of Ray for a job that has ended with 0."""
END_TIMEOUT = 60.0
"""Seconds that jobs have to end once the run is over."""
SUBMISSION = 15.0
"""Seconds that are left to a submission when the run ends."""
_ENDING = RetryPolicy(0.5, 4.0)
"""Between two looks at jobs that are to end."""
log = logging.getLogger(__name__)


def _name(number: int) -> str:
    return f"worker-{number}"


class JobQueue(Protocol):
    """A batch system, as a run sees it. Methods block, and raise ClusterUnavailable where it does not answer."""

    system: str
    """Its name, for people."""
    python: str
    """Interpreter of workers, on the nodes."""
    grace: float
    """Seconds from SIGTERM to the end of a job."""
    ahead: float
    """Seconds before the end of its job in which a worker is told of it."""
    later: float
    """Seconds between two looks at the jobs while none is awaited."""

    @abstractmethod
    def jobs(self) -> list[Job]:
        """Of the run, with those that have ended a short time ago, as far as they are known."""

    @abstractmethod
    def submit(self, worker: str, command: Sequence[str], output: Path) -> str:
        """Submit a job. Return its id.

        Args:
            worker: its part of the run.
            command: what it runs.
            output: file to which it appends what it writes.

        Raises:
            InvalidSettings: it is refused for good.
        """

    @abstractmethod
    def cancel(self, ids: Iterable[str], *, in_order: bool = False) -> None:
        """End jobs; no harm where one has ended.

        Args:
            ids: of the jobs.
            in_order: they run, and get SIGTERM and nothing else, if the system can do that.
        """

    @abstractmethod
    def why_pending(self, reason: str) -> tuple[str, bool]:
        """Say why a job is pending, for people, and whether waiting cannot help."""

    def close(self) -> None:
        """The run is over, and so are its jobs."""
        return


class JobWorkers(FolderWorkers):
    """Keep as many jobs in the queue, or running, as are wanted.

    Args:
        folder: of the run, on a file system that all nodes see.
        spec: what to run.
        queue: where its jobs are submitted.
        clock: seconds.
    """

    def __init__(
        self, folder: RunDir, spec: RunSpec, queue: JobQueue, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._spec = folder, spec
        self._queue, self._clock = queue, clock
        self._address = ""
        self._workers: dict[str, Worker] = {}
        self._ranks: Mapping[str, int] = {}
        self._wanted: int | None = None
        self._count = 0
        self._refused: Refusal | None = None
        self._unanswered: Refusal | None = None
        self._warnings: list[str] = []
        self._told: set[str] = set()
        """Why jobs wait, as far as it was told."""
        self._retry, self._hold_until = Retry(backoff_policy(spec.recovery)), 0.0
        self._killed: set[str] = set()
        """Ids of jobs that are to be ended as they are."""
        self._unsure_until = -math.inf
        """Until then, a job may turn up whose submission has failed, as it seemed."""
        self._over = False
        """Whether the run ends."""
        self._wake = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._limited_log = RateLimitedLog(log)

    @override
    def open(self, address: str) -> None:
        self._address = address
        (self._folder.path / OUTPUTS).mkdir(mode=0o700, exist_ok=True)
        self._looking = asyncio.create_task(self._look_after())

    @override
    def world(self, ranks: Mapping[str, int]) -> None:
        self._ranks = ranks

    @override
    def reconcile(self, wanted: int) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    @override
    def expects(self, worker: str, /) -> bool:
        return worker in self._workers

    @override
    def came(self, worker: str, /) -> None:
        if known := self._workers.get(worker):
            self._workers[worker] = replace(known, came=True, gone=False)

    @override
    def gone(self, worker: str, /) -> None:
        if known := self._workers.get(worker):
            self._workers[worker] = replace(known, gone=True)
        self._wake.set()

    @override
    def deadline(self, worker: str, /) -> datetime | None:
        known = self._workers.get(worker)
        end = known.job.end if known and known.job and known.job.state is JobState.RUNNING else None
        return end if end is not None and (end - utc_now()).total_seconds() < self._queue.ahead else None

    @override
    def refusal(self) -> Refusal | None:
        if self._refused:
            return self._refused
        return next((self._refusal(each) for each in self._waiting()), self._unanswered)

    @override
    def warnings(self) -> tuple[str, ...]:
        told, self._warnings = tuple(self._warnings), []
        return told

    @override
    def end(self, worker: str, /) -> str:
        if known := self._workers.get(worker):
            self._workers[worker] = replace(known, asked_to_end=True)
            self._killed.add(known.id)
            self._wake.set()
        return "its job is ended, and another is submitted"

    @override
    async def end_workers(self) -> None:
        if self._looking is None:
            return
        self._over = True
        self._wake.set()
        # A job that is being submitted now is to be known before all are ended.
        await asyncio.wait({self._looking}, timeout=SUBMISSION)
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        self._looking = None
        await self._end_jobs()
        try:
            await asyncio.to_thread(self._queue.close)
        except Exception as error:  # noqa: BLE001  # or the run's end would not be told
            log.warning("what is left of the run in %s: %s", self._queue.system, printable(error))

    async def _end_jobs(self) -> None:
        retry = Retry(_ENDING)
        try:
            async with asyncio.timeout(END_TIMEOUT):
                while True:
                    try:
                        jobs = await asyncio.to_thread(self._queue.jobs)
                        left = [each.id for each in jobs if self._is_worker(each) and each.state is not JobState.OVER]
                        if not left:
                            return
                        await asyncio.to_thread(self._queue.cancel, left)
                    except Exception as error:  # noqa: BLE001  # or the run's end would not be told
                        log.warning("jobs cannot be ended, trying again: %s", printable(error))
                    await retry.pause()
        except TimeoutError:
            log.warning("jobs of this run have not ended in %.0f s", END_TIMEOUT)

    def _waiting(self) -> Iterator[Worker]:
        return (each for each in self._workers.values() if each.pending and each.job and not each.asked_to_end)

    async def _look_after(self) -> None:
        while not self._over:
            self._wake.clear()
            try:
                await self._once()
                self._unanswered = None
            except ClusterUnavailable as error:
                self._unanswered = Refusal(str(error))
                self._limited_log.warning("jobs are not looked after for a moment: %s", printable(error))
            except Exception as error:  # noqa: BLE001  # or nobody would submit or end a job any more
                kind = type(error).__name__
                self._limited_log.warning("jobs cannot be handled, trying again: %s: %s", kind, printable(error))
            try:
                async with asyncio.timeout(SOON if self._awaits() else self._queue.later):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _awaits(self) -> bool:
        """Whether something is about to happen."""
        some = self._workers.values()
        return len(some) != self._wanted or any(each.asked_to_end or each.gone or not each.came for each in some)

    async def _once(self) -> None:
        if self._workers or self._clock() < self._unsure_until:
            self._see(await asyncio.to_thread(self._queue.jobs))
        wanted = self._wanted  # Before notices are looked for: of a worker that is named, its notice is written first.
        if wanted is None:
            return
        leaving = await asyncio.to_thread(self._with_notice, tuple(self._workers))
        now = self._clock()
        steps = decide(self._workers, wanted, self._ranks, now, leaving=leaving)
        if not steps.submit:
            self._refused = None
        await self._take(steps)

    def _with_notice(self, workers: Iterable[str]) -> frozenset[str]:
        """Those that go by themselves, since a notice has been written for them."""
        return frozenset(each for each in workers if self._folder.notice(each).exists())

    def _see(self, jobs: list[Job]) -> None:
        """Compare what was known with what the system tells."""
        told, now = {each.part: each for each in jobs if self._is_worker(each)}, self._clock()
        if now < self._unsure_until:
            self._take_in(told, now)
        for name, known in list(self._workers.items()):
            job = told.get(name) or known.job
            runs = job is not None and job.state is JobState.RUNNING
            seen = replace(known, job=job, began=known.began or (now if runs else None))
            self._workers[name] = seen
            if over(seen, now) or (known.job is not None and name not in told):
                del self._workers[name]
                self._ended(seen, now)
        self._tell_why_they_wait(now)

    def _take_in(self, told: Mapping[str, Job], now: float) -> None:
        """Jobs whose submission has failed, as it seemed, and that are there."""
        for number in range(self._count):
            job = told.get(name := _name(number))
            if job is not None and job.state is not JobState.OVER and name not in self._workers:
                self._workers[name] = Worker(name, job.id, now, job)

    def _tell_why_they_wait(self, now: float) -> None:
        """Once for each reason, as long as it lasts: the others may train meanwhile, and then no status says it."""
        reasons: set[str] = set()
        for worker in self._waiting():
            assert worker.job is not None
            reason = re.split(r"[,(]", worker.job.reason)[0]
            if reason not in self._told:
                if now < worker.submitted + PATIENCE:
                    continue
                self._warnings.append(self._refusal(worker).words)
            reasons.add(reason)
        self._told = reasons

    def _ended(self, worker: Worker, now: float) -> None:
        self._killed.discard(worker.id)
        job = worker.job
        short = worker.began is None or now - worker.began < SHORT_LIFE + SOON
        if worker.asked_to_end or worker.came or not short or (job and job.word in WELL):
            self._retry.succeeded()
            return
        self._hold_until = now + self._retry.failed()
        last = printable(last_line(self._output(worker.name)), 300)
        state = f"ended as {job.word} ({job.reason})" if job else f"is not known to {self._queue.system}"
        self._warnings.append(
            f"job {worker.id} of {worker.name} {printable(state)} before its agent connected"
            f"{f'; its last line: {last}' if last else ''}"
        )

    async def _take(self, steps: Steps) -> None:
        for name in steps.late:
            self._warnings.append(f"{name} has not connected in {COMING:.0f} s: {self.end(name)}")
        for name in steps.leave:
            worker = self._workers[name]
            # A signal leaves a job in the queue, and one that has not come to its step yet.
            await asyncio.to_thread(partial(self._queue.cancel, [worker.id], in_order=worker.came))
            # Not before: where the system has not answered, it is asked again.
            self._workers[name] = replace(self._workers[name], asked_to_end=True)
        if self._killed:
            await asyncio.to_thread(self._queue.cancel, self._killed)
        for _ in range(steps.submit):
            if not (self._over or self._clock() < self._hold_until):
                await self._submit()

    async def _submit(self) -> None:
        name = _name(self._count)
        self._count += 1
        try:
            number = await asyncio.to_thread(self._queue.submit, name, self._command(name), self._output(name))
        except InvalidSettings as error:
            self._refused = Refusal(f"{self._queue.system} refuses {name}: {error}", hopeless=True)
            self._hold_until = self._clock() + self._retry.failed()
            return
        except ClusterUnavailable as error:
            self._limited_log.warning("%s is not submitted for a moment: %s", name, printable(error))
            self._refused, self._unsure_until = Refusal(str(error)), self._clock() + UNSEEN
            self._hold_until = self._clock() + self._retry.failed()
            return
        self._refused = None
        self._workers[name] = Worker(name, number, self._clock())

    def _command(self, name: str) -> list[str]:
        return [
            *(self._queue.python, "-m", "elastic_runtime.agent", "--worker", name),
            *("--launcher", self._address, "--tls", str(self._folder.tls), "--towards-launcher"),
            *("--slots", str(self._spec.workers.slots), "--grace", str(self._queue.grace)),
            *("--notice-file", str(self._folder.notice(name))),
            *("--metadata", self._spec.recovery.notices),
        ]

    def _output(self, worker: str) -> Path:
        return self._folder.path / OUTPUTS / f"{worker}.log"

    def _is_worker(self, job: Job) -> bool:
        return job.run == self._spec.uid and job.part != LAUNCHER

    def _refusal(self, worker: Worker) -> Refusal:
        assert worker.job is not None
        words, hopeless = self._queue.why_pending(worker.job.reason)
        return Refusal(f"{worker.name} is job {worker.job.id}. {words}", hopeless)
