"""A rank that keeps the others waiting while all live: it is found, named and replaced alone."""

from __future__ import annotations

import os
import signal

import pytest

from elastic_runtime.run.spec import RecoverySpec, Timing
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(120)


def test_a_rank_that_stands_still_is_named_and_replaced_alone(start: Start, undisturbed: Undisturbed) -> None:
    run = start(
        Script("exact.py", holds=(20,)),
        (1, 3, 3),
        engine="torch",
        timing=Timing(stop_grace=0.5),
        recovery=RecoverySpec(backoff=0.1, standstill=2.0),
    )
    run.at(20)
    run.until_status(lambda status: status.step == 20, "two commits were told")
    others = {run.worker(0).name, run.worker(2).name}
    asleep = run.worker(1).name
    os.kill(run.rank_pid(1), signal.SIGSTOP)
    run.until_status(lambda status: sizes_of(status)[-2:] == [2, 3], "two train on, and then three")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    told = [event.message for event in status.events if event.kind is EventKind.STANDSTILL]
    assert f"at step 20: rank 1 ({asleep}.0.0): its process is stopped; it is replaced" in told[-1]
    assert run.events(EventKind.LOST, EventKind.SUSPENDED, EventKind.RESTARTED) == []
    assert run.events(EventKind.RANK_FAILED) == [f"rank_failed {asleep}"]
    assert {each.name for each in status.workers} == {*others, asleep}
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
