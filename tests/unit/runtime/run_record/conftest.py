"""Fixtures: a record whose time stands still."""

from __future__ import annotations

import pytest

from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.run.spec import RunSpec
from tests.unit.runtime.run_record.bench import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record(clock: Clock) -> RunRecord:
    return RunRecord(RunSpec("run", "uid", ("true",)), clock)
