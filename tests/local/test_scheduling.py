"""Which processes of a run take a core from others."""

from __future__ import annotations

import os

import pytest

from tests.local.conftest import Start
from tests.paced import Script


@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_ranks_alone_take_a_core_at_once(start: Start, engine: str) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 2, 2), engine=engine)
    run.at(20)
    status = run.status()
    agents = [worker.pids[0] for worker in status.workers]
    ranks = [pid for worker in status.workers for pid in worker.pids[1:]]
    assert len(ranks) == 2
    assert {os.sched_getscheduler(pid) for pid in ranks} == {os.SCHED_OTHER}
    assert {os.sched_getscheduler(pid) for pid in (run.launcher.pid, *agents)} == {os.SCHED_BATCH}
    run.succeed()
