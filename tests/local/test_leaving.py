"""Planned leaves: a worker is reclaimed with notice, and its replacement comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)


def test_workers_with_a_notice_leave_and_no_step_is_lost(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600.0)
    run = start(Script("exact.py", holds=(20, 40)), (1, 3, 3), checkpoint=checkpoint)
    run.at(20)
    run.reclaim(other := run.worker(1).name, seconds=20)
    run.worlds(3, 2, 3)
    run.go(20)
    run.at(40)
    run.reclaim(first := run.worker(0).name, seconds=20)
    run.worlds(3, 2, 3, 2, 3)
    assert run.worker(0).name != first

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [3, 2, 3, 2, 3, 0]
    # A world without the worker and the worker's own end come in either order; everything else is fixed.
    assert run.events(EventKind.NOTICE, EventKind.STARTED, EventKind.SCALED, EventKind.RANK_FAILED, EventKind.LOST) == [
        *("started 3", f"notice {other}", "scaled 2", "scaled 3"),
        *(f"notice {first}", "scaled 2", "scaled 3"),
    ]
    assert run.events(EventKind.NOTICE, EventKind.LEFT)[:4] == [
        *(f"notice {other}", f"left {other}", f"notice {first}", f"left {first}"),
    ]
    states = {worker.name: worker.state for worker in status.workers}
    assert (states[other], states[first]) == (WorkerState.LEFT, WorkerState.LEFT)
    for gone in (other, first):
        assert f"rank {gone}.0.0 ended with code 0" in run.log()
    handovers = [event.message.partition(" at ")[0] for event in status.events if event.kind is EventKind.HANDOVER]
    # A second notice within a second needs none of its own; ranks that hear of one a second apart write another.
    assert list(dict.fromkeys(handovers)) in (
        ["durable checkpoint of step 20"],
        ["durable checkpoint of step 20", "durable checkpoint of step 40"],
    )
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    for epoch in run.ledger().epochs():
        assert run.ledger().samples(epoch) == dict.fromkeys(range(100), 1)
    undisturbed.assert_same(run)


def test_all_workers_with_a_notice_at_once_hand_the_state_on(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 2, 2))
    run.at(20)
    old = [run.worker(rank).name for rank in (0, 1)]
    for name in old:
        run.reclaim(name)

    def handed_on(status: Status) -> bool:
        """In one status; another one may have the former world."""
        left = [event for event in status.events if event.kind is EventKind.LEFT]
        return len(left) == 2 and status.world_size == 2 and {0, 1} <= {r for w in status.workers for r in w.ranks}

    run.until_status(handed_on, "two others")
    assert not {run.worker(rank).name for rank in (0, 1)} & set(old)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert 0 not in sizes_of(status)[:-1]
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED) == []
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
