"""The program that drives Spark, with a module in place of pyspark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_runtime.spark import driver
from tests.unit.runtime.agent_bench import SOON

PYSPARK = """
import os

class SparkConf:
    def setAll(self, pairs):
        return self

class Scala:
    def sc(self):
        return self

    def isStopped(self):
        if os.path.exists("dead"):
            raise ConnectionRefusedError("Java's process has ended")
        return False

class SparkContext:
    applicationId = "app-1"

    def __init__(self, conf):
        self._jsc = Scala()
        os.write(1, b"[info][gc] Pause Young 3 ms\\n")

    def cancelAllJobs(self):
        pass

    stop = cancelAllJobs
"""
FIRST = b'{"conf": {}, "exported": []}\n'


@pytest.fixture
def begun(tmp_path: Path) -> subprocess.Popen[bytes]:
    (tmp_path / "pyspark.py").write_text(PYSPARK)
    process = subprocess.Popen(
        [sys.executable, driver.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.stdin is not None
    process.stdin.write(FIRST)
    process.stdin.flush()
    return process


def test_what_java_writes_is_no_event(begun: subprocess.Popen[bytes]) -> None:
    events, log = begun.communicate(timeout=SOON)
    assert [json.loads(line) for line in events.splitlines()] == [{"ready": "app-1"}]
    assert b"Pause Young" in log
    assert begun.returncode == 0


def test_it_ends_when_java_has_ended(begun: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert begun.stdout is not None
    assert json.loads(begun.stdout.readline()) == {"ready": "app-1"}
    (tmp_path / "dead").touch()
    try:
        assert begun.wait(SOON) == driver.STOPPED
    finally:
        begun.kill()
        begun.communicate()
