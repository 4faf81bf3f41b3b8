"""A rank that holds the others back, in a world in which all need the same time for a step: it is named."""

from __future__ import annotations

import pytest

from elastic_runtime.run.spec import RecoverySpec, Stragglers
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(120)


def test_a_slow_rank_is_named_and_replaced(start: Start) -> None:
    run = start(
        Script("exact.py", epochs=1000, step_seconds=0.02, slow={"worker-1": 0.1}),
        (1, 3, 3),
        engine="torch",
        environment={"IN_PLACE": "1"},
        recovery=RecoverySpec(stragglers=Stragglers.REPLACE, factor=1.3, window=5.0),
    )
    status = run.until_status(
        lambda status: {each.name for each in status.workers if each.ranks} == {"worker-0", "worker-2", "worker-3"},
        "another one trains in place of the slow worker",
    )
    told = [event for event in status.events if event.kind is EventKind.STRAGGLER]
    assert [event.worker for event in told] == ["worker-1"]
    assert "as long as the others for 5 s" in told[0].message
    assert told[0].message.endswith("; it is replaced")
    assert run.events(EventKind.LEFT) == ["left worker-1"]
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED) == []
