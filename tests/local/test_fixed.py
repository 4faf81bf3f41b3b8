"""Fixed mode: only at exactly the wanted size, paused and holding the state in between."""

from __future__ import annotations

import os
import signal

import pytest

from elastic_runtime.spec import RecoveryMode, RecoverySpec
from elastic_runtime.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(180)


def test_a_fixed_run_pauses_until_all_are_back_and_goes_on_where_it_was(start: Start, undisturbed: Undisturbed) -> None:
    recovery = RecoverySpec(mode=RecoveryMode.FIXED, backoff=1.0)
    run = start(Script("exact.py", holds=(20, 40)), (1, 3, 3), recovery=recovery)
    run.at(20)
    os.kill(run.agent_pid(run.worker(1).name), signal.SIGKILL)
    paused = run.until_status(lambda status: status.phase is Phase.SUSPENDED, "a pause")
    assert "the least is 3" in paused.reason
    run.worlds(3, 0, 3)
    run.go(20)
    run.at(40)
    run.resize(2)  # Another size that it is fixed at.
    run.worlds(3, 0, 3, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [3, 0, 3, 2, 0]
    told = (EventKind.LOST, EventKind.SUSPENDED, EventKind.RESUMED, EventKind.SCALED, EventKind.RESTARTED)
    assert [event.split()[0] for event in run.events(*told)] == ["lost", "suspended", "resumed", "scaled", "scaled"]
    assert set(run.ledger().sizes().values()) == {2, 3}
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
