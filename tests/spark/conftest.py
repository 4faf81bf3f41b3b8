"""Runs in a real Spark: that of ``tools/spark with``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.batch_systems import starting, undisturbed
from tests.spark_run import SparkRun

__all__ = ["Start", "start", "undisturbed"]

Start = Callable[..., SparkRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    assert "SPARK_LAB" in os.environ, "run me through tools/spark with --"
    yield from starting(tmp_path, SparkRun)
