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
from tests.shard_trials import assert_each_is_counted_once, loses_a_rank_shrinks_and_loses_all
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


def test_each_shard_is_committed_once_through_losses_and_sizes(start: Start, tmp_path: Path) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=0.1)
    run = begin(start, [240, 12, 0.002, "shards"], (5, 10, 15), checkpoint)
    run.at(5)
    loses_a_rank_shrinks_and_loses_all(run, run.trains(3))
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
