"""A run that is paused and resumed: nobody computes meanwhile, and the training is the same as without."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, has_ended

pytestmark = pytest.mark.timeout(300)


@pytest.mark.shows(engine="horovod", fault="pause", place="local")
def test_no_step_is_lost_and_nothing_runs_meanwhile(start: Start, undisturbed: Undisturbed, tmp_path: Path) -> None:
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600.0)
    run = start(Script("exact.py", holds=(20,)), (1, 2, 2), checkpoint=checkpoint)
    run.at(20)
    pids = [pid for rank in (0, 1) for pid in run.worker(rank).pids]
    run.pause()
    run.until_status(lambda status: status.pause, "the pause is asked for")
    run.go(20)
    run.until_status(
        lambda status: status.phase is Phase.PAUSED and all(each.state.gone for each in status.workers), "it is paused"
    )
    run.until(lambda: all(map(has_ended, pids)), "no agent and no rank is left")
    assert run.folder.read_size() == 0

    run.resume()
    status = run.succeed()

    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    assert status.pause is None
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED, EventKind.SUSPENDED) == []
    assert [each.size for each in status.history] == [2, 0, 2, 0]
