"""What the log of a run says of checkpoints: little, and nothing of their addresses."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.protocol import rank_link
from elastic_runtime.run.spec import CheckpointSpec, RunSpec
from elastic_runtime.run.status import EventKind

URI = f"s3://bucket/{'long/' * 50}run"
SPEC = RunSpec(name="run", uid="uid", command=("python",), checkpoint=CheckpointSpec(URI))


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "checkpoint" in each.getMessage()]


def test_short_and_every_so_often(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    record = RunRecord(SPEC, clock)

    def written(step: int, *, handover: bool = False) -> None:
        uri = f"{URI}/ckpt-f1-s{step}-t1-ab"
        record.rank_said(rank_link.CheckpointWritten(uri, step, clock.time, handover, 0.25, 0.0), "worker-0")
        clock.time += timedelta(seconds=5)

    for step in range(1, 26):
        written(step)
    assert lines_of(caplog) == [
        "checkpoint of step 1 in 0.25 s",
        "checkpoint of step 13 in 0.25 s, after 11 others",
        "checkpoint of step 25 in 0.25 s, after 11 others",
    ]
    assert len([each for each in record.status((), {}, 1).events if each.kind is EventKind.CHECKPOINT]) == 25
    caplog.clear()
    written(26, handover=True)
    record.rank_said(rank_link.CheckpointFailed(27, "no space left"), "worker-0")
    written(28)
    assert lines_of(caplog) == [
        "hand-over checkpoint of step 26 in 0.25 s",
        "checkpoint: durable checkpoint of step 27 FAILED: no space left",
        "checkpoint of step 28 in 0.25 s",
    ]
    assert [each.levelname for each in caplog.records if "FAILED" in each.message] == ["WARNING"], "where people look"
