"""A notice while rank 0 evaluates: no commit comes, and what was committed last is on the store before the deadline."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import EventKind
from tests.local.checkpointing import until_checkpoint
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("start", ["horovod", pytest.param("torch", marks=pytest.mark.long)], indirect=True)
def test_a_notice_in_an_evaluation_keeps_the_last_commit(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Rank 0 is frozen behind the commit of step 20, and nobody else can commit without it."""
    uri = (tmp_path / "checkpoints").as_uri()
    run = start(Script("exact.py", freezes=(20,)), (1, 2, 2), checkpoint=CheckpointSpec(uri, every=3600.0))
    run.at(20)
    run.reclaim(run.worker(0).name, 60.0)
    status = until_checkpoint(run, 20)
    assert next(event.message for event in status.events if event.kind is EventKind.HANDOVER).startswith(
        "durable checkpoint of step 20 "
    )
    run.go(20)
    run.succeed()
    undisturbed.assert_same(run)


@pytest.mark.parametrize("start", [pytest.param("horovod", marks=pytest.mark.long), "torch"], indirect=True)
def test_a_checkpoint_that_falls_due_in_an_evaluation_is_written(start: Start, tmp_path: Path) -> None:
    uri = (tmp_path / "checkpoints").as_uri()
    run = start(Script("exact.py", freezes=(20,)), (2, 2, 2), checkpoint=CheckpointSpec(uri, every=0.5))
    run.at(20)
    until_checkpoint(run, 20)
    run.go(20)
    run.succeed()
