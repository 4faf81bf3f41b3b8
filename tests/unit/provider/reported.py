"""Runs that are reported on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.record.series import noted
from elastic_runtime.run.status import (
    Checkpoint,
    Event,
    EventKind,
    Phase,
    Series,
    SizeAsked,
    Status,
    WorkerState,
    WorkerStatus,
    World,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def curves(**values: list[float]) -> dict[str, Series]:
    """A report a second, each of ten steps."""
    series: dict[str, Series] = {}
    for name, column in values.items():
        for number, value in enumerate(column, start=1):
            series |= noted({name: series.get(name, Series())}, {name: value}, 10 * number, at(number))
    return series


WORKER = WorkerStatus("worker-0", "node-a", WorkerState.TRAINING, at(1), 1, (0, 1), (7,), 20.0, instance_type="p4d")
RUN = Status(
    "nightly-train-1",
    "uid-1",
    Phase.SUCCEEDED,
    "all ranks ended with code 0",
    at(10),
    started=at(1),
    finished=at(10),
    target_size=2,
    step=90,
    metrics={"loss": 0.25},
    series=curves(loss=[2.0 / number for number in range(1, 10)], accuracy=[0.5] * 9),
    throughput=curves(throughput=[10.0] * 9)["throughput"],
    workers=(WORKER,),
    events=(
        Event(at(1), EventKind.STARTED, "2 <ranks> train", world_size=2),
        Event(at(3), EventKind.CHECKPOINT, "durable checkpoint of step 30", step=30),
        Event(at(5), EventKind.NOTICE, "worker-1 will be taken", "worker-1", 50),
        Event(at(10), EventKind.FINISHED, "succeeded"),
    ),
    checkpoint=Checkpoint("file:///there", 90, at(10)),
    history=(World(at(1), 2, 1), World(at(6), 1, 2, 50), World(at(8), 2, 3, 70)),
    asked=(SizeAsked(at(0), 2), SizeAsked(at(4), 3), SizeAsked(at(7), 2)),
    worker_seconds={"worker-0": 700.0},
)
EMPTY = Status("run", "uid", Phase.PENDING, "the launcher is starting", NOON)
FAILED = replace(RUN, phase=Phase.FAILED, failure=FailureKind.RANK_FAILED, reason="rank 0 ended with code 1")
