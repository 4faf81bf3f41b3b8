"""Two trainings that hand a worker of a pool over, each way, while its keeper is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.local.pooled import Pool
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(300)


@pytest.mark.shows(engine="horovod", fault="resize", place="pool")
def test_two_trainings_hand_a_worker_over_and_back_and_lose_no_step(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Pool(tmp_path, 3).kept() as pool:
        low = pool.run(Script("exact.py", holds=(10, 20)), (1, 2, 2), 1)
        low.at(10)
        high = pool.run(Script("exact.py", holds=(10,)), (1, 2, 2), 10)
        low.worlds(2, 1)
        high.until_status(lambda status: status.world_size == 2, "two workers")
        assert any("priority 1 beside scripted (10)" in event.message for event in low.status().events)
        high.at(10)
        low.go(10)
        os.kill(pool.folder.keeper().process.pid, signal.SIGKILL)
        high.resize(1)
        low.at(20)
        low.worlds(2, 1, 2)
        high.resize(2)
        low.worlds(2, 1, 2, 1)
        for run in (high, low):
            run.succeed()
            undisturbed.assert_same(run)
