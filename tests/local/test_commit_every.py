"""A state that commits at every so many calls: a kill costs the steps since then, and what is planned costs none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.checkpointing import assert_ends_durably, until_checkpoint
from tests.local.conftest import Start, each_engine
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(300)

NEVER = 10_000
"""Calls, more than a run here makes."""


@each_engine
def test_a_kill_costs_the_steps_since_the_last_commit(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", state_every=5, freezes=(23,)), (3, 3, 3))
    run.at(23)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    run.go(23)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert {step for step, times in run.ledger().steps().items() if times > 1} == {21, 22, 23}
    assert run.events(EventKind.RESTARTED) == []
    undisturbed.assert_same(run)


@each_engine
def test_resizes_and_notices_between_two_commits_cost_none(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600.0)
    run = start(Script("exact.py", state_every=NEVER, holds=(10, 20, 40)), (1, 2, 3), checkpoint=checkpoint)
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    run.go(10)
    run.at(20)
    run.reclaim(gone := run.worker(1).name, seconds=20)
    status = until_checkpoint(run, 20)
    handed_over = [event.message for event in status.events if event.kind is EventKind.HANDOVER]
    assert handed_over[0].startswith("durable checkpoint of step 20 ")
    run.worlds(2, 3, 2, 3)
    run.go(20)
    run.at(40)
    run.resize(1)
    run.worlds(2, 3, 2, 3, 1)
    run.go(40)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert gone not in {worker.name for worker in status.workers if worker.ranks}
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    until_checkpoint(run, 70)
    undisturbed.assert_same(run)


@pytest.mark.parametrize("start", ["horovod", "torch-in-place"], indirect=True)
def test_no_step_is_lost_when_all_workers_are_taken_between_two_commits(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """All who have the state: they commit at each call from the notice on, and stand at one that is durable."""
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600.0)
    run = start(Script("exact.py", state_every=NEVER, holds=(20,)), (2, 2, 2), checkpoint=checkpoint)
    run.at(20)
    for rank in (0, 1):
        run.reclaim(run.worker(rank).name, seconds=20)
    run.go(20)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


@each_engine
def test_a_run_that_is_asked_to_end_before_its_first_commit_loses_no_step(start: Start, tmp_path: Path) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600.0)
    run = start(Script("exact.py", epochs=1000, state_every=NEVER, step_seconds=0.05), checkpoint=checkpoint)
    assert_ends_durably(run)
