"""Scripted runs whose workers are tasks of a real Spark."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from elastic_runtime.documents import to_json
from elastic_runtime.spark.jobs import SPEC, SparkSpec
from tests.local.harness import ScriptedRun
from tests.paced import until

GRACE = 20.0


def lab() -> Any:
    """What ``tools/spark with`` tells of the cluster."""
    return json.loads(os.environ["SPARK_LAB"])


@dataclass(frozen=True)
class Node:
    """Processes of Spark that a worker is in."""

    executor: psutil.Process
    daemon: psutil.Process
    """Spark's own worker."""


def alive() -> int:
    """Nodes that the master knows as alive."""
    with urllib.request.urlopen(f"http://127.0.0.1:{lab()['page']}/json/", timeout=10) as answer:
        return sum(each["state"] == "ALIVE" for each in json.load(answer)["workers"])


class SparkRun(ScriptedRun):
    """A run in the Spark of ``tools/spark with``."""

    cpus = 4
    """Of a worker: all of a node."""

    def start(self) -> SparkRun:
        found = lab()
        exported = ("PYTHONPATH",)
        self.spark = SparkSpec(
            found["master"], sys.executable, found["python"], self.cpus, grace=GRACE, exported=exported
        )
        self.folder.create(self.spec, owner="test")
        (self.folder.path / SPEC).write_text(to_json(self.spark))
        self.launch()
        return self

    def driver_pid(self) -> int:
        """Process id of the driver."""
        return next(
            each.pid for each in psutil.Process(self.launcher.pid).children() if "driver.py" in each.cmdline()[1]
        )

    def node_of(self, worker: str) -> Node:
        """Where that worker is."""
        java = [each for each in psutil.Process(self.agent_pid(worker)).parents() if each.name() == "java"]
        return Node(java[0], java[1])

    @contextmanager
    def decommissioned(self, worker: str) -> Iterator[None]:
        """Have the node of that worker decommissioned; another one is there afterwards."""
        daemon = self.node_of(worker).daemon
        daemon.send_signal(signal.SIGPWR)
        try:
            yield
        finally:
            daemon.terminate()
            until(lambda: not daemon.is_running() and alive() == lab()["nodes"], "all nodes are there again")

    def assert_nothing_left(self) -> None:
        super().assert_no_process(30.0)
        super().assert_nothing_left()

    def report(self, what: str) -> str:
        jobs = sorted((self.folder.path / "jobs").glob("*.log"))
        tails = "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in jobs)
        return f"{super().report(what)}\n{tails}"


class SharingRun(SparkRun):
    """The same with as many workers on a node as it has CPUs."""

    cpus = 1
