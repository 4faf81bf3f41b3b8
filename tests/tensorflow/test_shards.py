"""Shards with Keras: each is once in the state at the end, whichever ranks are lost, and however fast they are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script
from tests.tensorflow.conftest import ENVIRONMENT, SCRIPTS

pytestmark = pytest.mark.timeout(240)


def begin(
    start: Start, shards: list[object], holds: tuple[int, ...], checkpoint: CheckpointSpec | None = None
) -> ScriptedRun:
    script = Script("counted.py", holds=holds)
    return start(
        script,
        (1, 3, 3),
        script.command(SCRIPTS),
        environment={**ENVIRONMENT, "SHARDS": json.dumps(shards)},
        recovery=RecoverySpec(backoff=0.1),
        checkpoint=checkpoint,
    )


def assert_each_is_counted_once(run: ScriptedRun, count: int) -> None:
    ends = [note["counts"] for note in run.notes() if "counts" in note]
    assert ends
    assert ends == [[1] * count] * len(ends)


def test_each_shard_is_committed_once_through_losses_and_sizes(start: Start, tmp_path: Path) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=0.1)
    run = begin(start, [240, 12, 0.002, "shards"], (5, 10, 15), checkpoint)
    run.at(5)
    worlds = run.trains(3)
    run.kill_rank(1)
    run.go(5)
    run.until_status(lambda status: len(status.history) > worlds and status.world_size == 3, "three ranks again")
    run.at(10)
    run.resize(2)
    run.trains(2)
    run.go(10)
    run.at(15)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 15, "a checkpoint of step 15")
    run.kill_ranks(0, 1)

    run.succeed()

    assert_each_is_counted_once(run, 240)


def test_ranks_that_do_not_wait_meet_without_one_that_is_lost(start: Start) -> None:
    count = 600
    run = begin(start, [count, 1.0, 0.02, "asynchronous"], (2,))
    run.at(2)
    run.go(2)
    run.until(lambda: any(note["rank"] == 1 for note in run.notes() if "took" in note and note["step"] == 3), "shards")
    run.kill_rank(1)
    last = [note["step"] for note in run.notes() if "took" in note and note["rank"] == 1][-1]

    run.succeed()

    assert_each_is_counted_once(run, count)
    taken = [note for note in run.notes() if "took" in note]
    again = {shard for shard, times in Counter(note["took"] for note in taken).items() if times > 1}
    assert again
    assert again <= {note["took"] for note in taken if (note["step"], note["rank"]) == (last, 1)}, "the lost rank's"
