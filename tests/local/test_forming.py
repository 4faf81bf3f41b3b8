"""Ranks that are lost while others start for the next world, and are not ready for it yet."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)

SOON = 25.0
"""Seconds; the ranks wait for each other for 30 inside ``hvd.init()``, and a newcomer was started four times there."""
NEWCOMER = "worker-2"
"""Stands before ``hvd.init()``, so that it is not ready for a world."""
QUICKLY = RecoverySpec(backoff=0.1)


def begin(start: Start, folder: Path, workers: tuple[int, int, int]) -> ScriptedRun:
    """Two ranks stand at a durable step 20."""
    run = start(
        Script("exact.py", holds=(20,), doors={NEWCOMER: "wait"}),
        workers,
        checkpoint=CheckpointSpec((folder / "checkpoints").as_uri(), every=0.1),
        recovery=QUICKLY,
    )
    run.at(20)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 20, "a checkpoint of step 20")
    return run


def kill(*pids: int) -> float:
    """Returns when."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def test_the_loss_of_all_who_hold_the_state_is_no_wait_for_them(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = begin(start, tmp_path, (1, 2, 3))
    veterans = [run.rank_pid(rank) for rank in (0, 1)]
    run.resize(3)
    run.at(NEWCOMER)
    killed = kill(*veterans)
    run.go(NEWCOMER)
    run.worlds(2, 0, 3)
    assert time.monotonic() - killed < SOON

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.SUSPENDED, EventKind.RESTARTED) == ["suspended", "restarted"]
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


def test_the_loss_of_the_last_who_waited_for_a_newcomer_is_no_wait_for_ever(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = begin(start, tmp_path, (2, 2, 2))
    leaving, last = run.worker(1).name, run.rank_pid(0)
    run.reclaim(leaving, 0.1)
    run.at(NEWCOMER)
    killed = kill(last)
    run.go(NEWCOMER)
    run.worlds(2, 0, 2)
    assert time.monotonic() - killed < SOON

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.RESTARTED) == ["restarted"]
    assert set(run.ledger().steps()) == set(range(1, 71))
    undisturbed.assert_same(run)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_loss_of_one_who_waited_for_a_newcomer_leaves_the_state_with_the_other(
    start: Start, undisturbed: Undisturbed, tmp_path: Path, rank: int
) -> None:
    run = begin(start, tmp_path, (1, 2, 3))
    veteran = run.rank_pid(rank)
    run.resize(3)
    run.at(NEWCOMER)
    killed = kill(veteran)
    run.go(NEWCOMER)
    run.until_status(lambda status: sizes_of(status)[-1:] == [3], "three ranks")
    assert time.monotonic() - killed < SOON

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.SUSPENDED, EventKind.RESTARTED) == []
    assert len(run.events(EventKind.RANK_FAILED)) == 1
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
