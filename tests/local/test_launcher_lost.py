"""kill -9 of the launcher: everything of the run goes with it, and a new run goes on where it was, or starts over."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)


@pytest.mark.shows(engine="horovod", fault="launcher", place="local")
def test_a_killed_launcher_leaves_nothing_and_the_next_run_resumes_or_starts_over(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=0.1)
    first = start(Script("exact.py", holds=(30,)), (1, 2, 2), checkpoint=checkpoint)
    first.at(30)
    first.until_status(lambda status: status.checkpoint and status.checkpoint.step == 30, "a checkpoint of step 30")
    assert first.folder.launcher_alive()
    command = [sys.executable, "-m", "elastic_runtime.launcher", str(first.folder.path)]
    another = subprocess.run(command, capture_output=True, text=True, check=False)
    assert another.returncode != 0
    assert "another launcher runs" in another.stderr
    assert first.status().phase is Phase.RUNNING, "it has harmed the one that was there"
    first.launcher.send_signal(signal.SIGKILL)
    first.launcher.wait()

    first.assert_no_process(max_wait=30.0)
    assert not first.folder.launcher_alive()
    assert first.status().phase is Phase.RUNNING

    second = start(Script("exact.py"), (1, 2, 2), checkpoint=replace(checkpoint, fence=2))
    status = second.end()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 0]
    assert [event.step for event in status.events if event.kind is EventKind.RESUMED] == [30]
    assert sorted(second.ledger().steps()) == list(range(31, 71))
    undisturbed.assert_same_losses(second, range(31, 71))
    undisturbed.assert_same_weights(second)

    afresh = replace(checkpoint, fence=3, resume=False)
    third = start(Script("exact.py", epochs=1), (1, 2, 2), checkpoint=afresh)
    status = third.end()
    assert status.phase is Phase.SUCCEEDED
    assert sorted(third.ledger().steps()) == list(range(1, 8))
    assert status.checkpoint is not None
    assert status.checkpoint.step == 7
    undisturbed.assert_same_losses(third, range(1, 8))
