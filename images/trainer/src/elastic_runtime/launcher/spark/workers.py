"""Worker set of tasks: :class:`SparkWorkers` does in Spark what a ReplicaSet does on Kubernetes.

The driver of the application is a child process (:mod:`elastic_runtime.spark.driver`), so that nothing of a JVM is in
the launcher, and the application ends with it however it ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.decision.backoff import backoff_policy
from elastic_runtime.launcher.decision.facts import Refusal
from elastic_runtime.launcher.folder.platform import FolderWorkers
from elastic_runtime.launcher.spark.sizing import COMING, SHORT_LIFE, Worker, decide
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry
from elastic_runtime.run.reading import last_line
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.spark import driver
from elastic_runtime.spark.jobs import OUTPUTS, SparkSpec, configuration, why_failed

PATIENCE = 20.0
"""Seconds after which it is told that a task waits for an executor."""
END_TIMEOUT = 30.0
"""Seconds that the driver has to end with its application, before it is killed."""
_LINE = 1 << 16
"""Bytes of a line of the driver's."""
log = logging.getLogger(__name__)


class SparkWorkers(FolderWorkers):
    """Keep as many tasks waiting, or running, as are wanted.

    Args:
        folder: of the run, on a file system that all nodes see.
        spec: what to run.
        spark: how workers are had.
        host: of the launcher, as nodes reach it.
        clock: seconds.
    """

    def __init__(
        self,
        folder: RunDir,
        spec: RunSpec,
        spark: SparkSpec,
        host: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._spec, self._spark, self._host, self._clock = folder, spec, spark, host, clock
        self._address = ""
        self._workers: dict[str, Worker] = {}
        self._ranks: Mapping[str, int] = {}
        self._count = 0
        self._driving: asyncio.Task[None] | None = None
        self._driver: asyncio.subprocess.Process | None = None
        self._ready = False
        self._refused: Refusal | None = None
        self._warnings: list[str] = []
        self._told_waiting = False
        self._retry, self._hold_until = Retry(backoff_policy(spec.recovery)), 0.0

    @override
    def open(self, address: str) -> None:
        self._address = address
        (self._folder.path / OUTPUTS).mkdir(mode=0o700, exist_ok=True)
        self._driving = asyncio.create_task(self._drive())

    @override
    def world(self, ranks: Mapping[str, int]) -> None:
        self._ranks = ranks

    @override
    def reconcile(self, wanted: int) -> None:
        if not self._ready:
            return
        now = self._clock()
        steps = decide(self._workers, wanted, self._ranks, now, held=now < self._hold_until)
        for name in steps.late:
            self._warnings.append(f"{name} has not connected within {COMING:.0f} s: its task is ended, and replaced")
            self.end(name)
        for name in steps.leave:
            known = self._workers[name]
            self._workers[name] = replace(known, asked_to_end=True)
            if known.came:
                self._notify(name, "scale")
            else:
                self._tell(end=name)
        for _ in range(steps.start):
            self._start()
        self._tell_why_they_wait()

    @override
    def expects(self, worker: str, /) -> bool:
        return worker in self._workers

    @override
    def came(self, worker: str, /) -> None:
        if known := self._workers.get(worker):
            self._workers[worker] = replace(known, came=True)
            self._refused = None

    @override
    def gone(self, worker: str, /) -> None:
        """Nothing: the driver tells when its task is over."""

    @override
    def refusal(self) -> Refusal | None:
        if self._refused:
            return self._refused
        waiting = next(self._waiting(), None)
        return Refusal(_why_waiting(waiting.name, self._spark)) if waiting else None

    @override
    def warnings(self) -> tuple[str, ...]:
        told, self._warnings = tuple(self._warnings), []
        return told

    @override
    def end(self, worker: str, /) -> str:
        if known := self._workers.get(worker):
            self._workers[worker] = replace(known, asked_to_end=True)
            self._tell(end=worker)
        return "its task is killed, and another one starts"

    @override
    async def end_workers(self) -> None:
        if self._driving is None:
            return
        driving, self._driving = self._driving, None
        self._ready = False
        if self._driver and self._driver.stdin:
            self._driver.stdin.close()
        else:
            driving.cancel()
        try:
            async with asyncio.timeout(END_TIMEOUT):
                await asyncio.gather(driving, return_exceptions=True)
        except TimeoutError:
            log.warning("the driver of Spark has not ended in %.0f s: it is killed", END_TIMEOUT)

    async def _drive(self) -> None:
        """Have a driver, for as long as this is open."""
        while True:
            try:
                await self._drive_once()
            except (OSError, InvalidDocument, ValueError) as error:
                words = f"the driver of Spark cannot be used: {type(error).__name__}: {printable(error)}"
                log.warning("%s", words)
                self._refused = Refusal(f"{words}. Check the interpreter in pyspark, {self._spark.pyspark}")
            for name in list(self._workers):
                self._ended(name, "")
            if self._driving is None:
                return
            await asyncio.sleep(self._retry.failed())

    async def _drive_once(self) -> None:
        output = self._folder.path / OUTPUTS / "driver.log"
        with output.open("ab") as errors:
            process = self._driver = await asyncio.create_subprocess_exec(
                *(self._spark.pyspark, driver.__file__),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=self._folder.path,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                limit=_LINE,
            )
        assert process.stdout is not None
        try:
            workers = self._spec.workers
            conf = configuration(self._spark, self._spec.name, workers.start, workers.maximum, self._host)
            self._tell(conf=conf, exported=self._spark.exported)
            while line := await process.stdout.readline():
                self._handle(parse_json(line))
            status = await process.wait()
        finally:
            self._ready, self._driver = False, None
            if process.returncode is None:
                process.kill()
                await process.wait()
        if self._driving is not None:
            self._refuse(f"the driver of Spark ended with {status}", output)

    def _refuse(self, what: str, output: Path) -> None:
        """Say why there can be no worker now. Of a log that Java has written, the first line that is known counts."""
        with suppress(OSError):
            tail = output.read_bytes()[-(1 << 16) :].decode(errors="replace")
            remedy, hopeless = why_failed(tail)
            said = f": {remedy}" if remedy else f" ({printable(last_line(output), 300)})"
            self._refused = Refusal(f"{what}{said}. Its log is {output}", hopeless)
            log.warning("%s", self._refused.words)

    def _handle(self, event: object) -> None:
        if not isinstance(event, dict):
            raise InvalidDocument(f"{printable(event, 100)} is not an event")
        if "ready" in event:
            log.info("Spark application %s is there", printable(event["ready"], 100))
            self._ready, self._refused = True, None
            self._retry.succeeded()
        elif (known := self._workers.get(str(event.get("began")))) is not None:
            self._workers[known.name] = replace(known, began=self._clock())
        elif "decommissioned" in event:
            self._notify(str(event["decommissioned"]), "spark")
        elif "ended" in event:
            self._ended(str(event["ended"]), str(event.get("error", "")))

    def _notify(self, worker: str, source: str) -> None:
        """Have its agent find a notice, as of a preemption."""
        notice = ReclaimNotice(source, utc_now() + timedelta(seconds=self._spark.grace))
        if worker in self._workers and not self._notice(worker).exists():
            self._folder.write_notice(worker, notice)

    def _notice(self, worker: str) -> Path:
        return self._folder.notices / f"{worker}.json"

    def _ended(self, name: str, error: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is None:
            return
        with suppress(OSError):  # A notice that stays harms nobody: no other worker gets the name.
            self._notice(name).unlink(missing_ok=True)
        now = self._clock()
        short = worker.began is None or now - worker.began < SHORT_LIFE
        if worker.asked_to_end or worker.came or not short or not error:
            return
        self._hold_until = now + self._retry.failed()
        said = printable(last_line(self._output(name)) or error, 300)
        remedy, hopeless = why_failed(f"{error} {said}")
        words = f"the task of {name} ended before its agent connected: {said}{f': {remedy}' if remedy else ''}"
        self._warnings.append(words)
        self._refused = Refusal(words, hopeless)

    def _start(self) -> None:
        name = f"worker-{self._count}"
        self._count += 1
        self._workers[name] = Worker(name, self._clock())
        self._tell(start=name, command=self._command(name), output=str(self._output(name)))

    def _command(self, name: str) -> list[str]:
        return [
            *(self._spark.python, "-m", "elastic_runtime.agent", "--worker", name),
            *("--launcher", self._address, "--tls", str(self._folder.tls), "--towards-launcher"),
            *("--slots", str(self._spec.workers.slots), "--grace", str(self._spark.grace)),
            *("--notice-file", str(self._notice(name)), "--metadata", self._spec.recovery.notices),
        ]

    def _output(self, worker: str) -> Path:
        return self._folder.path / OUTPUTS / f"{worker}.log"

    def _tell(self, **order: object) -> None:
        if self._driver is not None and self._driver.stdin is not None and not self._driver.stdin.is_closing():
            self._driver.stdin.write(json.dumps(order).encode() + b"\n")

    def _waiting(self) -> Iterator[Worker]:
        late = self._clock() - PATIENCE
        return (
            each
            for each in self._workers.values()
            if each.began is None and not each.came and not each.asked_to_end and each.started < late
        )

    def _tell_why_they_wait(self) -> None:
        """Once, as long as one waits: the others may train meanwhile, and then no status says it."""
        waiting = next(self._waiting(), None)
        if waiting and not self._told_waiting:
            self._warnings.append(_why_waiting(waiting.name, self._spark))
        self._told_waiting = waiting is not None


def _why_waiting(worker: str, spark: SparkSpec) -> str:
    gpus = f", {spark.gpus} GPUs" if spark.gpus else ""
    return (
        f"Spark has not started {worker} yet: its cluster has no free executor with {spark.cpus} CPUs{gpus} and "
        f"{spark.memory} of memory. Wait, add nodes, or ask for less"
    )
