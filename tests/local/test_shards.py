"""Shards of ranks that are lost or stand still, and of all at once: each is once in the state at the end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script
from tests.shard_trials import assert_each_is_counted_once, loses_a_rank_shrinks_and_loses_all

pytestmark = pytest.mark.timeout(120)
PER_STEP = 12
LEASE = 4.0
"""Seconds; a rank takes 0.03 for a shard, where it has a core."""


@pytest.mark.shows(engine="torch-shards", fault=("resize", "rank"), place="local")
def test_each_shard_is_committed_once_through_losses_and_sizes(start: Start, tmp_path: Path) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=0.1)
    run = start(
        Script("counted.py", freezes=(5,), holds=(10, 15)),
        (1, 3, 3),
        engine="torch",
        checkpoint=checkpoint,
        recovery=RecoverySpec(backoff=0.1),
        environment={"SHARDS": json.dumps([PER_STEP * 20, PER_STEP, 0.0, "shards"])},
    )
    run.at(5)
    worlds = run.trains(3)

    def taken(step: int) -> int:
        return sum("took" in note and note["step"] == step for note in run.notes())

    run.until(lambda: taken(6) == PER_STEP, "two ranks have all shards of the step, and wait for the first")
    loses_a_rank_shrinks_and_loses_all(run, worlds)
    assert_each_is_counted_once(run, PER_STEP * 20)
    times = Counter(note["step"] for note in run.notes() if "took" in note)
    assert times[6] == 2 * PER_STEP
    assert sum(times.values()) == 21 * PER_STEP


@pytest.mark.shows(engine="torch-shards", fault="standstill", place="local")
def test_a_rank_that_keeps_a_shard_costs_the_others_nothing(start: Start) -> None:
    """They do not wait for each other, so it is late alone."""
    count, step, stopped = 300, 2, 1
    run = start(
        Script("counted.py", stand=("stop", step, stopped)),
        (1, 3, 3),
        engine="torch",
        recovery=RecoverySpec(backoff=0.1),
        environment={"SHARDS": json.dumps([count, 0.3, 0.01, "asynchronous", LEASE])},
    )

    status = run.succeed()

    [late] = [event for event in status.events if event.kind is EventKind.STANDSTILL]
    assert f"has had a shard of step {step} for" in late.message
    assert_each_is_counted_once(run, count)
    taken = Counter(note["took"] for note in run.notes() if "took" in note)
    assert sum(taken.values()) == count + 1, "others train on the one shard that it had, and on no other again"
