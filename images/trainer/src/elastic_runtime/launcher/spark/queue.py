"""Spark as a :class:`~elastic_runtime.launcher.jobs.workers.JobQueue`: each worker is one task, alone in its executor.

The driver of the application is a child process (:mod:`elastic_runtime.spark.driver`), so that nothing of a JVM is in
the launcher, and the application ends with it however it ends.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import IO

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.launcher.decision.backoff import backoff_policy
from elastic_runtime.launcher.jobs.workers import JobQueue
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry
from elastic_runtime.run.jobs import OUTPUTS, Job, JobState
from elastic_runtime.run.reading import last_line
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.spark import driver
from elastic_runtime.spark.jobs import SparkSpec, configuration, why_failed

READY_TIMEOUT = 10.0
"""Seconds that a submission waits for the driver. It may take longer: the next one waits again."""
END_TIMEOUT = 30.0
"""Seconds that the driver has to end with its application, before it is killed."""
_LINE = 1 << 16
"""Bytes of a line of the driver's."""
log = logging.getLogger(__name__)


class SparkQueue(JobQueue):
    """Tasks of one run. Methods may be called in any thread.

    Args:
        folder: of the run, on a file system that all nodes see.
        spec: what to run.
        spark: how workers are had.
        host: of the launcher, as nodes reach it.
        clock: seconds.
    """

    system = "Spark"
    later = 2.0
    ahead = math.inf

    def __init__(
        self,
        folder: RunDir,
        spec: RunSpec,
        spark: SparkSpec,
        host: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._spec, self._spark, self._host, self._clock = folder, spec, spark, host, clock
        self.python, self.grace = spark.python, spark.grace
        self._changed = threading.Condition()
        self._driver: subprocess.Popen[bytes] | None = None
        self._listening: threading.Thread | None = None
        self._is_ready = False
        self._retry, self._due = Retry(backoff_policy(spec.recovery)), 0.0
        self._failure = ""
        """Why there is no driver."""
        self._hopeless = ""
        """What waiting cannot help, of the driver or of a task."""
        self._jobs: dict[str, Job] = {}
        self._count = 0

    @override
    def jobs(self) -> list[Job]:
        with self._changed:
            found = list(self._jobs.values())
            self._jobs = {job.id: job for job in found if job.state is not JobState.OVER}
        for job in found:
            if job.state is JobState.OVER:
                with suppress(OSError):  # A notice that stays harms nobody: no other worker gets the name.
                    self._notice(job.part).unlink(missing_ok=True)
        return found

    @override
    def submit(self, worker: str, command: Sequence[str], output: Path) -> str:
        with self._changed:
            self._have_driver()
            self._count += 1
            job = Job(str(self._count), self._spec.uid, worker, JobState.PENDING, "PENDING", "")
            self._tell(start=worker, command=list(command), output=str(output))
            self._jobs[job.id] = job
            return job.id

    @override
    def cancel(self, ids: Iterable[str], *, in_order: bool = False) -> None:
        with self._changed:
            workers = [self._jobs[number].part for number in list(ids) if number in self._jobs]
            if not in_order:
                for worker in workers:
                    self._tell(end=worker)
                return
        for worker in workers:
            if not self._notice(worker).exists():
                end = utc_now() + timedelta(seconds=self.grace)
                self._folder.write_notice(worker, ReclaimNotice("scale", end))

    @override
    def why_pending(self, reason: str) -> tuple[str, bool]:
        gpus = f", {self._spark.gpus} GPUs" if self._spark.gpus else ""
        return (
            f"Spark has not started it yet: its cluster has no free executor with {self._spark.cpus} CPUs{gpus} and "
            f"{self._spark.memory} of memory. Wait, add nodes, or ask for less"
        ), False

    @override
    def close(self) -> None:
        """End the driver, and the application with it. Blocks for :data:`END_TIMEOUT` and a moment at most."""
        with self._changed:
            process, self._driver = self._driver, None
            listening = self._listening
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        if listening is not None:
            listening.join(END_TIMEOUT + 1.0)

    # With self._changed held

    def _have_driver(self) -> None:
        """Raise ClusterUnavailable if there is none, or not yet; InvalidSettings where waiting cannot help."""
        if self._clock() < self._due and self._hopeless:
            raise InvalidSettings("spark", self._hopeless, "Correct it")
        self._hopeless = ""
        if self._driver is None:
            if self._clock() < self._due:
                raise ClusterUnavailable(self._failure)
            self._start_driver()
        known = self._driver
        self._changed.wait_for(lambda: self._is_ready or self._driver is not known, READY_TIMEOUT)
        if self._hopeless:
            raise InvalidSettings("spark", self._hopeless, "Correct it")
        if not self._is_ready:
            raise ClusterUnavailable(self._failure or "the driver of Spark is starting")

    def _start_driver(self) -> None:
        output = self._folder.path / OUTPUTS / "driver.log"
        try:
            with output.open("ab") as errors:
                process = self._driver = subprocess.Popen(
                    [self._spark.pyspark, driver.__file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=self._folder.path,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
        except OSError as error:
            self._due = self._clock() + self._retry.failed()
            said = f"{type(error).__name__}: {printable(error)}"
            self._failure = f"the driver of Spark cannot be started: {said}. Check pyspark, {self._spark.pyspark}"
            raise ClusterUnavailable(self._failure) from error
        self._failure = ""
        self._listening = threading.Thread(target=self._listen, args=(process, output), name="spark", daemon=True)
        self._listening.start()
        workers = self._spec.workers
        conf = configuration(self._spark, self._spec.name, workers.start, workers.maximum, self._host)
        self._tell(conf=conf, exported=self._spark.exported)

    def _tell(self, **order: object) -> None:
        if self._driver is not None and self._driver.stdin is not None:
            with suppress(OSError):  # It has ended, which is heard.
                self._driver.stdin.write(json.dumps(order).encode() + b"\n")
                self._driver.stdin.flush()

    def _change(self, worker: str, state: JobState, word: str, reason: str = "") -> None:
        for number, job in self._jobs.items():
            if job.part == worker and job.state is not JobState.OVER:
                self._jobs[number] = replace(job, state=state, word=word, reason=reason)

    # In the thread that listens to the driver

    def _listen(self, process: subprocess.Popen[bytes], output: Path) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as stream:
                self._hear(stream)
            status = process.wait(END_TIMEOUT)
        except (OSError, InvalidDocument, ValueError, subprocess.TimeoutExpired) as error:
            log.warning("the driver of Spark is killed: %s: %s", type(error).__name__, printable(error))
            process.kill()
            status = process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        self._driver_ended(process, f"the driver of Spark ended with {status}", output)

    def _hear(self, stream: IO[bytes]) -> None:
        while line := stream.readline(_LINE):
            event = parse_json(line)
            if not isinstance(event, dict):
                raise InvalidDocument(f"{printable(event, 100)} is not an event")
            with self._changed:
                self._handle({name: str(value) for name, value in event.items()})
                self._changed.notify_all()

    def _handle(self, event: dict[str, str]) -> None:
        if application := event.get("ready"):
            log.info("Spark application %s is there", printable(application, 100))
            self._is_ready = True
            self._retry.succeeded()
        elif worker := event.get("began"):
            self._change(worker, JobState.RUNNING, "RUNNING")
        elif worker := event.get("decommissioned"):
            end = utc_now() + timedelta(seconds=self.grace)
            self._jobs = {n: replace(job, end=end) if job.part == worker else job for n, job in self._jobs.items()}
        elif worker := event.get("ended"):
            self._ended(worker, event.get("error", ""))

    def _ended(self, worker: str, error: str) -> None:
        if not error:
            self._change(worker, JobState.OVER, "SUCCEEDED")
            return
        last = last_line(self._folder.path / OUTPUTS / f"{worker}.log")
        remedy, hopeless = why_failed(f"{error} {last}")
        reason = f"{printable(error, 300)}{f': {remedy}' if remedy else ''}"
        if hopeless:
            self._hopeless, self._due = reason, self._clock() + self._retry.failed()
        self._change(worker, JobState.OVER, "FAILED", reason)

    def _driver_ended(self, process: subprocess.Popen[bytes], what: str, output: Path) -> None:
        """Of a log that Java has written, the first line that is known counts."""
        tail = ""
        with suppress(OSError):
            tail = output.read_bytes()[-(1 << 16) :].decode(errors="replace")
        remedy, hopeless = why_failed(tail)
        said = f": {remedy}" if remedy else f" ({printable(last_line(output), 300)})"
        with self._changed:
            self._is_ready = False
            for job in list(self._jobs.values()):
                self._change(job.part, JobState.OVER, "FAILED", what)
            if self._driver is process:  # Else it was asked to.
                self._driver = None
                self._failure = f"{what}{said}. Its log is {output}"
                self._hopeless = self._failure if hopeless else ""
                self._due = self._clock() + self._retry.failed()
                log.warning("%s", self._failure)
            self._changed.notify_all()

    def _notice(self, worker: str) -> Path:
        return self._folder.notices / f"{worker}.json"
