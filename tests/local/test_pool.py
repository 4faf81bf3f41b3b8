"""Two trainings that hand a worker of a pool over, each way, while its keeper is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.local.pooled import Pool
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(300)


@pytest.mark.shows(engine="torch", fault="resize", place="pool")
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


@pytest.mark.shows(engine=("horovod", "torch"), fault="resize", place="pool")
@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_a_training_has_another_size_when_its_pool_has_and_loses_no_step(
    tmp_path: Path, undisturbed: Undisturbed, engine: str
) -> None:
    with Pool(tmp_path, 1).kept() as pool:
        run = pool.run(Script("exact.py", holds=(10, 20)), (1, 2, 2), 1, engine)
        run.at(10)
        run.worlds(1)
        pool.resize(2)
        run.worlds(1, 2)
        run.go(10)
        run.at(20)
        pool.resize(1)
        run.worlds(1, 2, 1)
        assert any("which has 1 at most" in event.message for event in run.status().events)
        run.succeed()
        undisturbed.assert_same(run)
