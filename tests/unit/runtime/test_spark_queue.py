"""Tasks of Spark as a queue of jobs, with a program in place of the driver that speaks as its docstring says."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.launcher.jobs import workers as module
from elastic_runtime.launcher.jobs.workers import JobWorkers
from elastic_runtime.launcher.spark.queue import SparkQueue
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RecoverySpec, RunSpec, WorkersSpec
from elastic_runtime.spark.jobs import QUICK, SparkSpec, configuration, why_failed
from tests.unit.runtime.agent_bench import SOON

RUN = RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3), recovery=RecoverySpec(backoff=0.01))
DRIVER = """#!{python}
# Notes each order, begins each task, and ends those that it is to end; says besides what the test has it say.
import json, os, sys, threading, time

def tell(**event):
    print(json.dumps(event), flush=True)

def say():
    seen = 0
    while True:
        if os.path.exists("say"):
            lines = open("say").read().split("\\n")[:-1]
            for line in lines[seen:]:
                print(line, flush=True)
            seen = len(lines)
        time.sleep(0.005)

orders = open("orders", "a", buffering=1)
orders.write(sys.stdin.readline())
while os.path.exists("slow"):
    time.sleep(0.005)
if os.path.exists("fail"):
    sys.exit(open("fail").read())
tell(ready="app-1")
threading.Thread(target=say, daemon=True).start()
for line in sys.stdin:
    orders.write(line)
    order = json.loads(line)
    if "start" in order and not os.path.exists("full"):
        tell(began=order["start"], host="n1")
    if "end" in order:
        tell(ended=order["end"], error="cancelled")
while os.path.exists("hang"):
    time.sleep(0.005)
"""


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOON", 0.01)
    monkeypatch.setattr(SparkQueue, "later", 0.01)


class Bench:
    """The worker set, and what its driver was told."""

    def __init__(self, folder: Path) -> None:
        program = folder / "driver"
        program.write_text(DRIVER.format(python=sys.executable))
        program.chmod(0o700)
        self.folder = RunDir(folder / "run")
        self.folder.create(RUN, "owner")
        spark = SparkSpec("spark://m:7077", "python", str(program), grace=20.0, exported=("KEY",))
        self.now = 0.0
        self.queue = SparkQueue(self.folder, RUN, spark, "10.0.0.1", clock=lambda: self.now)
        self.workers = JobWorkers(self.folder, RUN, self.queue, clock=lambda: self.now)

    def orders(self) -> list[dict[str, Any]]:
        path = self.folder.path / "orders"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def told(self, order: str) -> list[str]:
        return [each[order] for each in self.orders() if order in each]

    def say(self, **event: str) -> None:
        with (self.folder.path / "say").open("a") as stream:
            stream.write(f"{json.dumps(event)}\n")


@asynccontextmanager
async def played(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    bench.workers.open("10.0.0.1:7777")
    try:
        yield bench
    finally:
        await bench.workers.end_workers()
        await bench.workers.end_workers()  # harmless


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110  # another process writes
            await asyncio.sleep(0.005)


async def wanted(bench: Bench, count: int, starts: int | None = None) -> None:
    """Have so many, as the platform's looks at the folder do, until so many were started in all."""

    def enough() -> bool:
        bench.workers.reconcile(count)
        return len(bench.told("start")) >= (starts or count)

    await until(enough)


def test_as_many_tasks_as_are_wanted(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            await wanted(bench, 2)
            first, *starts = bench.orders()
            assert first["exported"] == ["KEY"]
            assert first["conf"]["spark.dynamicAllocation.maxExecutors"] == "4"
            assert [each["start"] for each in starts] == ["worker-0", "worker-1"]
            assert starts[0]["command"][:5] == ["python", "-m", "elastic_runtime.agent", "--worker", "worker-0"]
            assert bench.workers.expects("worker-1")
            assert not bench.workers.expects("worker-2")

    asyncio.run(run())


def test_one_that_trains_finds_a_notice_and_one_that_has_not_come_is_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            await wanted(bench, 3)
            for name in ("worker-0", "worker-1"):
                bench.workers.came(name)
            bench.workers.world({"worker-0": 0, "worker-1": 1})
            bench.workers.reconcile(1)
            await until(lambda: bench.told("end") and any(bench.folder.notices.iterdir()))
            assert bench.told("end") == ["worker-2"]
            assert [each.name for each in bench.folder.notices.iterdir()] == ["worker-1.json"]
            bench.say(ended="worker-1", error="")
            await until(lambda: not bench.workers.expects("worker-1"))
            assert list(bench.folder.notices.iterdir()) == []
            assert bench.workers.warnings() == ()

    asyncio.run(run())


def test_a_decommissioned_executor_is_a_notice(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            await wanted(bench, 1)
            bench.workers.came("worker-0")
            bench.say(decommissioned="worker-0")
            await until(lambda: bench.workers.deadline("worker-0"))
            assert 15 < (bench.workers.deadline("worker-0") - utc_now()).total_seconds() <= 20
            bench.say(ended="worker-0", error="")
            await until(lambda: not bench.workers.expects("worker-0"))
            await wanted(bench, 1, starts=2)
            assert bench.told("start") == ["worker-0", "worker-1"]

    asyncio.run(run())


def test_a_task_that_ends_at_once_is_told_with_what_helps_and_started_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            await wanted(bench, 1)
            bench.say(ended="worker-0", error="FileNotFoundError: No such file or directory: '/shared/python'")
            told: list[str] = []
            await until(lambda: told.extend(bench.workers.warnings()) or told)
            assert "job 1 of worker-0 ended as FAILED" in told[0]
            assert "at one path on all machines" in told[0]
            bench.now = 100.0
            await wanted(bench, 1, starts=2)

    asyncio.run(run())


def test_a_driver_that_ends_takes_its_workers_and_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            (bench.folder.path / "fail").write_text("JAVA_HOME is not set")
            bench.workers.reconcile(1)
            await until(lambda: (told := bench.workers.refusal()) and told.hopeless)
            told = bench.workers.refusal()
            assert told is not None
            assert "the driver of Spark ended with 1: there is no Java" in told.words
            (bench.folder.path / "fail").unlink()
            bench.now = 100.0
            await wanted(bench, 1)
            await until(lambda: bench.workers.refusal() is None)

    asyncio.run(run())


def test_a_driver_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_runtime.launcher.spark.queue.END_TIMEOUT", -0.9)
    drivers: list[subprocess.Popen[bytes]] = []

    async def run() -> None:
        async with played(tmp_path) as bench:
            await wanted(bench, 1)
            driver = bench.queue._driver
            assert driver is not None
            drivers.append(driver)
            (bench.folder.path / "hang").touch()
            bench.workers.reconcile(0)
            await until(lambda: bench.told("end"))

    asyncio.run(run())
    assert drivers[0].wait(SOON) == -signal.SIGKILL


def test_tasks_are_there_while_a_driver_starts_and_outlast_one_that_does_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            (bench.folder.path / "slow").touch()
            bench.workers.reconcile(2)
            await until(bench.workers.refusal)
            told = bench.workers.refusal()
            assert told is not None
            assert "worker-0 is job 1. its application is starting" in told.words
            assert not told.hopeless
            bench.now = module.PATIENCE + 1.0
            events: list[str] = []
            await until(lambda: events.extend(bench.workers.warnings()) or events)
            assert "its application is starting" in events[0]
            (bench.folder.path / "fail").write_text("All masters are unresponsive")
            (bench.folder.path / "slow").unlink()
            await until(lambda: "the master does not answer" in (bench.workers.refusal() or told).words)
            (bench.folder.path / "fail").unlink()
            bench.now = 200.0
            await until(lambda: len(bench.told("start")) == 2)
            assert bench.told("start") == ["worker-0", "worker-1"], "no worker was counted twice"
            await until(lambda: bench.workers.refusal() is None)

    asyncio.run(run())


def test_one_that_is_not_wanted_any_more_before_there_is_a_driver_is_not_started(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            (bench.folder.path / "slow").touch()
            bench.workers.reconcile(2)
            await until(lambda: bench.workers.expects("worker-1"))
            bench.workers.reconcile(1)
            await until(lambda: not bench.workers.expects("worker-1"))
            (bench.folder.path / "slow").unlink()
            await until(lambda: bench.told("start"))
            assert bench.told("start") == ["worker-0"]

    asyncio.run(run())


def test_a_task_that_waits_is_told_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            (bench.folder.path / "full").touch()
            bench.now = 100.0
            await wanted(bench, 1)
            await until(bench.workers.refusal)
            bench.now += module.PATIENCE - 1.0
            assert bench.workers.warnings() == (), "an executor takes a moment"
            bench.now += 2.0
            told: list[str] = []
            await until(lambda: told.extend(bench.workers.warnings()) or told)
            assert "its cluster has no free executor with 1 CPUs" in told[0]
            assert bench.workers.refusal() is not None

    asyncio.run(run())


def test_an_interpreter_that_is_missing_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with played(tmp_path) as bench:
            (tmp_path / "driver").rename(tmp_path / "elsewhere")
            bench.workers.reconcile(1)
            await until(lambda: (told := bench.workers.refusal()) and "Check pyspark" in told.words)
            (tmp_path / "elsewhere").rename(tmp_path / "driver")
            bench.now = 100.0
            await wanted(bench, 1)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "remedy", "hopeless"),
    [
        ("ModuleNotFoundError: No module named 'pyspark'", "it has no pyspark", True),
        ("All masters are unresponsive! Giving up.", "the master does not answer", False),
        ("java.io.InvalidClassException: org.apache.spark.rpc", "its version is not the cluster's", True),
        ("[PYTHON_VERSION_MISMATCH] Python in worker", "different versions of Python", True),
        ("something else", "", False),
    ],
)
def test_what_helps_is_said(said: str, remedy: str, hopeless: bool) -> None:
    found = why_failed(said)
    assert remedy in found[0]
    assert found[1] is hopeless


def test_settings_of_an_application() -> None:
    spec = SparkSpec("spark://m:7077", "python", "python", cpus=4, gpus=2, conf={"spark.driver.host": "10.0.0.5"})
    found = configuration(spec, "run", 2, 8, "10.0.0.1")
    assert found["spark.executor.cores"] == found["spark.task.cpus"] == "4"
    assert found["spark.task.resource.gpu.amount"] == "2"
    assert found["spark.driver.host"] == "10.0.0.5"
    assert found["spark.task.maxFailures"] == "1"
    # Twice as many seconds of a processor go into a driver that compiles its code twice.
    assert found["spark.driver.defaultJavaOptions"] == found["spark.executor.defaultJavaOptions"] == QUICK
