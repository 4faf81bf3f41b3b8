"""All workers have a notice and the store is slow: who holds the state stays until the hand-over is durable."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from elastic_runtime.agent.notices import FILE_INTERVAL
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import EventKind, Status, WorkerState
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("start", [pytest.param("horovod", marks=pytest.mark.long), "torch"], indirect=True)
def test_nobody_who_holds_the_state_is_let_go_before_it_is_durable(start: Start, tmp_path: Path) -> None:
    """The store does not take the first hand-over until all have trained on for a while."""
    folder = tmp_path / "checkpoints"
    run = start(
        *(Script("exact.py", holds=(20, 30)), (1, 2, 2)),
        checkpoint=CheckpointSpec(folder.as_uri(), every=3600.0),
    )
    run.at(20)
    aside = folder.rename(tmp_path / "aside")
    folder.touch()  # The store is away.
    names = [run.worker(rank).name for rank in (0, 1)]
    # Both come at once to the launcher; of two that come one after the other, the first finds one who stays.
    os.kill(run.launcher.pid, signal.SIGSTOP)
    for name in names:
        run.reclaim(name, 120.0)
    time.sleep(20 * FILE_INTERVAL)  # Until the agents have sent what they read, which shows nowhere.
    os.kill(run.launcher.pid, signal.SIGCONT)
    run.until_status(lambda _: len(run.events(EventKind.NOTICE)) == 2, "both notices")
    run.go(20)
    run.at(30)

    def both_train(status: Status) -> bool:
        return [
            len(each.ranks) for each in status.workers if each.name in names and each.state is not WorkerState.LEFT
        ] == [1, 1]

    assert both_train(run.status()), run.report("both hold the state")
    folder.unlink()
    aside.rename(folder)
    run.until_status(lambda _: run.events(EventKind.HANDOVER), "a hand-over is durable")
    run.until_status(lambda _: run.events(EventKind.LEFT), "one may go")
    run.succeed()
