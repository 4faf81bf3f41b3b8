"""Status documents of a run like any other: a few workers, a day of resizes, losses and checkpoints behind it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from elastic_runtime.clock import utc_now
from elastic_runtime.run.status import (
    Checkpoint,
    Event,
    EventKind,
    Phase,
    Status,
    WorkerState,
    WorkerStatus,
    World,
)

WORKERS = 4
_EVENTS = 30
_WORLDS = 10


def training(run: str, uid: str, created: datetime, step: int) -> Status:
    """In the middle of it; about nine kilobytes of JSON."""
    names = [f"{run}-worker-{index}aaa" for index in range(WORKERS)]
    now = utc_now()
    return Status(
        run=run,
        uid=uid,
        phase=Phase.RUNNING,
        reason=f"{WORKERS} ranks train",
        updated=now,
        started=created,
        world_size=WORKERS,
        target_size=WORKERS,
        generation=_WORLDS,
        step=step,
        metrics={"loss": 2.0 / (1 + step), "accuracy": step / (1 + step), "learning_rate": 0.001},
        workers=tuple(_worker(name, index, created, now) for index, name in enumerate(names)),
        events=tuple(_event(index, names[index % WORKERS], created) for index in range(_EVENTS)),
        checkpoint=Checkpoint("s3://bucket/runs/step-000001000", 1000, created),
        history=tuple(World(created, WORKERS - 1 + index % 2, index + 1, 100 * index) for index in range(_WORLDS)),
        worker_seconds={name: (now - created).total_seconds() for name in names},
    )


def succeeded(run: str, uid: str, created: datetime, step: int) -> Status:
    """Its last one."""
    final = training(run, uid, created, step)
    done = Event(utc_now(), EventKind.FINISHED, "succeeded: all ranks have ended with 0", step=step)
    return replace(
        final,
        phase=Phase.SUCCEEDED,
        reason="all ranks have ended with 0",
        finished=utc_now(),
        world_size=0,
        events=(*final.events, done),
    )


def line(step: int) -> str:
    """What rank 0 says of a step, as the launcher's log has it."""
    stamp = utc_now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{stamp} worker-0aaa [0]<stdout>: step {step} loss {2.0 / (1 + step):.4f} 312.4 samples/s"


def _worker(name: str, rank: int, created: datetime, now: datetime) -> WorkerStatus:
    return WorkerStatus(
        name=name,
        node=f"node-{rank}",
        state=WorkerState.TRAINING,
        since=created,
        slots=1,
        ranks=(rank,),
        pids=(7, 21),
        seconds=(now - created).total_seconds(),
        cpu_percent=97.5,
        memory_bytes=2_147_483_648 + rank,
        capacity_type="spot",
        instance_type="m5.2xlarge",
    )


def _event(index: int, worker: str, created: datetime) -> Event:
    kind = (EventKind.CHECKPOINT, EventKind.SCALED, EventKind.NOTICE, EventKind.LEFT)[index % 4]
    message = f"durable checkpoint of step {index * 100} at s3://bucket/runs/step-{index * 100:09d} in 0.84 s"
    return Event(created + timedelta(seconds=index), kind, message, worker, index * 100, WORKERS)
