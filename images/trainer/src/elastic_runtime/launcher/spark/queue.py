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
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.decision.backoff import backoff_policy
from elastic_runtime.launcher.jobs.workers import PATIENCE, JobQueue
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry
from elastic_runtime.run.jobs import OUTPUTS, Job, JobState
from elastic_runtime.run.reading import last_line
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.spark import driver
from elastic_runtime.spark.jobs import SparkSpec, configuration, why_failed

STARTING = "its application is starting in Spark"
"""Why a task waits until there is a driver, and for the first :data:`PATIENCE` of that."""
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
        self._lock = threading.Lock()
        self._driver: subprocess.Popen[bytes] | None = None
        self._listening: threading.Thread | None = None
        self._is_ready, self._ready = False, -math.inf
        """Whether a driver takes orders, and since when."""
        self._retry, self._due = Retry(backoff_policy(spec.recovery)), 0.0
        self._why, self._hopeless = "", False
        """What tasks wait for, besides an executor, and whether waiting cannot help."""
        self._jobs: dict[str, Job] = {}
        self._orders: dict[str, dict[str, object]] = {}
        """By worker whose task has not begun. If a driver ends before it has read them, the next one gets them."""
        self._count = 0

    @override
    def jobs(self) -> list[Job]:
        with self._lock:
            self._have_driver()
            why = self._why_pending()
            found = [replace(job, reason=why) if job.state is JobState.PENDING else job for job in self._jobs.values()]
            self._jobs = {job.id: job for job in found if job.state is not JobState.OVER}
        for job in found:
            if job.state is JobState.OVER:
                with suppress(OSError):  # A notice that stays harms nobody: no other worker gets the name.
                    self._folder.notice(job.part).unlink(missing_ok=True)
        return found

    @override
    def submit(self, worker: str, command: Sequence[str], output: Path) -> str:
        with self._lock:
            self._count += 1
            number = str(self._count)
            self._jobs[number] = Job(number, self._spec.uid, worker, JobState.PENDING, "PENDING", self._why)
            self._orders[worker] = {"start": worker, "command": list(command), "output": str(output)}
            if self._is_ready:
                self._tell(**self._orders[worker])
            self._have_driver()
            return number

    @override
    def cancel(self, ids: Iterable[str], *, in_order: bool = False) -> None:
        with self._lock:
            workers = [self._jobs[number].part for number in list(ids) if number in self._jobs]
            if not in_order:
                for worker in workers:
                    self._orders.pop(worker, None)
                    if self._is_ready:
                        self._tell(end=worker)
                    else:
                        self._change(worker, JobState.OVER, "CANCELLED")
                return
        for worker in workers:
            if not self._folder.notice(worker).exists():
                end = utc_now() + timedelta(seconds=self.grace)
                self._folder.write_notice(worker, ReclaimNotice("scale", end))

    @override
    def why_pending(self, reason: str) -> tuple[str, bool]:
        with self._lock:
            if why := self._why_pending():
                return f"{why}.", self._hopeless
        gpus = f", {self._spark.gpus} GPUs" if self._spark.gpus else ""
        return (
            f"Spark has not started it yet: its cluster has no free executor with {self._spark.cpus} CPUs{gpus} and "
            f"{self._spark.memory} of memory. Wait, add nodes, or ask for less"
        ), False

    @override
    def close(self) -> None:
        """End the driver, and the application with it. Blocks for :data:`END_TIMEOUT` and a moment at most."""
        with self._lock:
            process, self._driver = self._driver, None
            self._orders.clear()
            listening = self._listening
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        if listening is not None:
            listening.join(END_TIMEOUT + 1.0)
        if process is not None and process.poll() is None:
            process.kill()

    # With self._lock held

    def _why_pending(self) -> str:
        return self._why or (STARTING if self._clock() < self._ready + PATIENCE else "")

    def _have_driver(self) -> None:
        """Start one if tasks wait for it."""
        if self._driver is not None or not self._orders or self._clock() < self._due:
            return
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
            self._why = f"the driver of Spark cannot be started: {said}. Check pyspark, {self._spark.pyspark}"
            return
        self._why = self._why or STARTING
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
        self._orders.pop(worker, None)
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
            with self._lock:
                self._handle({name: str(value) for name, value in event.items()})

    def _handle(self, event: dict[str, str]) -> None:
        if application := event.get("ready"):
            log.info("Spark application %s is there", printable(application, 100))
            self._is_ready, self._ready = True, self._clock()
            self._why, self._hopeless = "", False
            self._retry.succeeded()
            for order in self._orders.values():  # Not before: a pipe that nobody reads would be full one day.
                self._tell(**order)
        elif worker := event.get("began"):
            self._why, self._hopeless = "", False
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
            self._why, self._hopeless = reason, True
        self._change(worker, JobState.OVER, "FAILED", reason)

    def _driver_ended(self, process: subprocess.Popen[bytes], what: str, output: Path) -> None:
        """Of a log that Java has written, the first line that is known counts."""
        tail = ""
        with suppress(OSError):
            tail = output.read_bytes()[-(1 << 16) :].decode(errors="replace")
        remedy, hopeless = why_failed(tail)
        said = f": {remedy}" if remedy else f" ({printable(last_line(output), 300)})"
        with self._lock:
            left, self._is_ready = {} if self._is_ready else self._orders, False
            for job in list(self._jobs.values()):
                if job.part not in left:
                    self._change(job.part, JobState.OVER, "FAILED", what)
            if self._driver is process:  # Else it was asked to.
                self._driver = None
                self._why, self._hopeless = f"{what}{said}. Its log is {output}", hopeless
                self._due = self._clock() + self._retry.failed()
