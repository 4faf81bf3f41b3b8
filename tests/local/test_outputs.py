"""Rank 0's folder of outputs goes from worker to worker, and is in the run's store at the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase, Status
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)


def kept(status: Status) -> dict[str, str]:
    """By name, of the folder that the status names."""
    assert status.outputs is not None
    found = {each.name: each.read_text() for each in Path(urlsplit(status.outputs.uri).path).iterdir()}
    assert (status.outputs.files, status.outputs.bytes) == (len(found), sum(map(len, found.values())))
    return found


def test_go_with_rank_0_to_another_worker_and_no_line_is_lost(start: Start, tmp_path: Path) -> None:
    checkpoint = CheckpointSpec((tmp_path / "store").as_uri(), every=3600.0, fence=7)
    run = start(Script("plotting.py", epochs=10, holds=(10,)), (1, 2, 2), checkpoint=checkpoint)
    run.at(10)
    run.reclaim(first := run.worker(0).name, seconds=20)
    run.worlds(2, 1, 2)
    assert run.worker(0).name != first

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    steps = "".join(f"{step}\n" for step in range(1, 41))
    assert kept(status) == {"log.csv": steps, "plots--end.txt": "rank 0"}
    assert status.outputs is not None
    assert status.outputs.uri == f"{checkpoint.uri}/outputs-7"
    assert not list(run.base.rglob("outputs-*")), "a worker's folder is left"


def test_begin_with_those_of_the_checkpoint_when_all_were_killed(start: Start, tmp_path: Path) -> None:
    checkpoint = CheckpointSpec((tmp_path / "store").as_uri(), every=3600.0)
    script = Script("plotting.py", epochs=10, holds=(10,))
    run = start(script, (2, 2, 2), checkpoint=checkpoint, recovery=RecoverySpec(backoff=0.1))
    run.at(10)
    names = [run.worker(rank).name for rank in (0, 1)]
    for name in names:
        run.reclaim(name, 60.0)
    run.until_status(lambda status: status.outputs is not None, "they are in the store with the hand-over")
    for name in names:
        os.kill(run.agent_pid(name), signal.SIGKILL)
    run.worlds(2, 0, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert len(run.events(EventKind.LOST)) == 2
    steps = "".join(f"{step}\n" for step in range(1, 41))
    assert kept(status) == {"log.csv": steps, "plots--end.txt": "rank 0"}
