from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import Checkpoint, Event, EventKind, MemoryGiven, Outputs, Phase, Status, World
from elastic_runtime.run.status_progress import Progress
from elastic_training.outcome.result import result_document, world_sizes

BEGIN = datetime(2026, 11, 21, 8, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


FINAL = Status(
    run="run",
    uid="1",
    phase=Phase.SUCCEEDED,
    reason="all ranks ended with code 0",
    updated=at(90),
    started=at(10),
    finished=at(90),
    step=120,
    metrics={"loss": 0.5},
    checkpoint=Checkpoint("file:///runs/run/120", 120, at(89)),
    events=(Event(at(10), EventKind.STARTED, "the first world trains", world_size=2),),
    history=(
        World(at(10), 2, 1, 0),
        World(at(30), 0, 1, 40),
        World(at(31), 2, 2, 40),
        World(at(50), 3, 3, 80),
        World(at(70), 2, 4, 100),
    ),
    worker_seconds={"worker-0": 80.0, "worker-1": 20.5},
)


def test_the_document_is_plain_json_and_complete() -> None:
    document = result_document(FINAL)
    assert json.loads(json.dumps(document)) == document
    assert document["checkpoint"] == {"uri": "file:///runs/run/120", "step": 120, "time": "2026-11-21T08:01:29.000Z"}
    assert (document["seconds"], document["worker_seconds_total"]) == (80.0, 100.5)
    assert document["events"][0]["kind"] == "started"
    assert (document["usage"][0]["seconds"], document["cost"]) == (100.5, None)
    assert len(document["history"]) == 5
    assert document["memory"] == []


def test_memory_that_workers_were_given_is_told() -> None:
    given = MemoryGiven(at(30), "worker-1", 8 << 30, 12 << 30, 40)
    assert result_document(replace(FINAL, memory=(given,)))["memory"] == [
        {"time": "2026-11-21T08:00:30.000Z", "worker": "worker-1", "before": 8 << 30, "after": 12 << 30, "step": 40}
    ]


def test_the_steps_of_the_whole_training_are_in_it_if_they_were_told() -> None:
    assert result_document(FINAL)["total_steps"] is None
    assert result_document(replace(FINAL, progress=Progress(150, 80.0)))["total_steps"] == 150


def test_what_the_function_has_returned_is_a_part_of_it_if_it_is_json() -> None:
    assert result_document(FINAL)["returned"] is None
    assert result_document(replace(FINAL, returned='{"accuracy": 0.97}'))["returned"] == {"accuracy": 0.97}
    assert result_document(replace(FINAL, returned="no JSON"))["returned"] is None


def test_the_folder_of_outputs_is_named_in_it() -> None:
    assert result_document(FINAL)["outputs"] is None
    left = Outputs("s3://b/run/outputs-7", files=2, bytes=30)
    assert result_document(replace(FINAL, outputs=left))["outputs"] == {"uri": left.uri, "files": 2, "bytes": 30}


def test_world_sizes_leave_out_pauses_and_repetitions() -> None:
    assert world_sizes(FINAL) == [2, 3, 2]


def test_a_run_that_never_trained_has_a_document_too() -> None:
    failed = Status(
        "run", "1", Phase.FAILED, "no worker came", at(60), finished=at(60), failure=FailureKind.START_TIMEOUT
    )
    document = result_document(failed)
    assert (document["failure"], document["seconds"], document["checkpoint"]) == ("start_timeout", None, None)
    assert document["world_sizes"] == []
