"""Ranks that are stopped (SIGSTOP), so that no connection of theirs ends, in a world that another loss has broken."""

from __future__ import annotations

import os
import signal

import pytest

from elastic_runtime.spec import RecoverySpec, Timing
from elastic_runtime.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("start", ["torch"], indirect=True)
@pytest.mark.parametrize("asleep", [0, 1])
def test_a_rank_that_sleeps_in_a_broken_world_is_stopped_and_the_state_is_kept(
    start: Start, undisturbed: Undisturbed, asleep: int
) -> None:
    timing, recovery = Timing(forming=6.0, stop_grace=1.0), RecoverySpec(backoff=0.1)
    run = start(Script("exact.py", holds=(20,)), (1, 3, 3), timing=timing, recovery=recovery)
    run.at(20)
    worlds = run.trains(3)
    sleeper, lost = run.rank_pid(asleep), run.rank_pid(2)
    os.kill(sleeper, signal.SIGSTOP)
    os.kill(lost, signal.SIGKILL)
    run.until_status(
        lambda status: len(status.history) > worlds and status.world_size == 3, "three ranks after the loss"
    )

    run.succeed()

    assert run.events(EventKind.RESTARTED, EventKind.SUSPENDED) == []
    assert len(run.events(EventKind.RANK_FAILED)) == 2
    assert f"rank {asleep} " in run.log()
    assert "has not left a world that is broken in time" in run.log()
    assert set(run.ledger().steps()) == set(range(1, 71))
    undisturbed.assert_same(run)
