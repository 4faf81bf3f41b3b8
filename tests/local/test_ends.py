"""Ends that somebody asks for, and runs beside each other."""

from __future__ import annotations

import os
import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.deadline import DeadlineSpec
from elastic_runtime.run.spec import CheckpointSpec, Timing
from elastic_runtime.run.status import EventKind, Phase
from tests.local.checkpointing import assert_ends_durably
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(240)

HELD = Script("exact.py", holds=(10,))


def cancelled(run: ScriptedRun) -> str:
    status = run.end(max_wait=60.0)
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.CANCELLED)
    assert sizes_of(status) == [2, 0]
    assert run.events(*EventKind)[-1] == "finished"
    return status.reason


def test_a_run_that_is_asked_to_end_ends(start: Start) -> None:
    run = start(HELD)
    run.at(10)
    run.folder.ask_to_end("enough is enough")
    assert cancelled(run) == "cancelled: enough is enough"


def test_why_a_run_was_cancelled_is_not_what_its_ranks_wrote_last(start: Start) -> None:
    run = start(HELD, command=("bash", "-c", "echo noise >&2; exec sleep 60"))
    run.until(lambda: "noise" in run.log(), "its words")
    run.folder.ask_to_end("enough")
    assert run.end().reason == "cancelled: enough"


def test_a_launcher_that_is_terminated_cancels_its_run(start: Start) -> None:
    run = start(HELD)
    run.at(10)
    run.launcher.terminate()
    assert "SIGTERM" in cancelled(run)


def test_a_run_that_is_asked_to_end_writes_a_checkpoint_first(start: Start, tmp_path: Path) -> None:
    seldom = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600)
    run = start(Script("exact.py", epochs=1000, step_seconds=0.05), checkpoint=seldom)
    assert_ends_durably(run)


def test_a_run_that_reaches_its_budget_writes_a_checkpoint_first(start: Start, tmp_path: Path) -> None:
    seldom = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600)
    deadline = DeadlineSpec(budget=55.0, price=3600.0)  # A dollar a second, and 30 s are for the end.
    script = Script("exact.py", holds=(5,))  # It trains on while a checkpoint is written, else.
    run = start(script, (1, 1, 1), checkpoint=seldom, deadline=deadline)
    status = run.end()
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.BUDGET)
    assert status.reason.startswith("the budget of 55.00 $ is reached: ")
    assert status.checkpoint is not None
    assert status.checkpoint.step == status.step == 5
    assert status.deadline is not None
    assert status.deadline.spent is not None
    assert 25.0 <= status.deadline.spent < 55.0


@pytest.mark.long
def test_a_run_that_would_be_late_grows_and_is_in_time(start: Start) -> None:
    """63 steps of 2 s each alone: it would be late by 15 s or more. With 2 ranks, half of that, and 30 s to spare."""
    deadline = DeadlineSpec(by=utc_now() + timedelta(seconds=115))
    run = start(Script("exact.py", epochs=9, step_seconds=1.0, shared_by=2), (1, 1, 2), deadline=deadline)
    status = run.end(max_wait=180.0)
    assert (status.phase, status.step) == (Phase.SUCCEEDED, 63)
    assert sizes_of(status)[:2] == [1, 2]
    assert status.finished is not None
    assert deadline.by is not None
    assert status.finished < deadline.by
    asked = [event.message for event in status.events if event.kind is EventKind.SIZE_ASKED]
    assert asked[0].startswith("2 workers by the deadline, 1 before: with 2 workers, it ends at ")


def test_a_run_whose_folder_is_deleted_ends(start: Start, tmp_path: Path) -> None:
    run = start(HELD)
    run.at(10)
    gone = run.folder.path.rename(tmp_path / "gone")  # At once: the launcher writes into it all the time.
    shutil.rmtree(gone)
    run.until(lambda: run.launcher.poll() is not None, "the launcher has ended", 60.0, alive=False)
    assert run.launcher.returncode == 1
    run.assert_nothing_left()


def test_a_run_that_nobody_begins_to_watch_ends(start: Start) -> None:
    run = start(HELD, timing=Timing(unwatched=2.0))
    run.folder.watched.touch()
    run.at(10)
    os.utime(run.folder.lease)  # as at a claim, whose task is then ended before a trigger runs
    run.folder.watched.unlink()
    status = run.end(max_wait=60.0)
    assert status.failure is FailureKind.ABANDONED
    assert status.reason.startswith("no task has watched the run for ")


def test_two_runs_at_once_do_not_disturb_each_other(start: Start, undisturbed: Undisturbed, tmp_path: Path) -> None:
    runs = [
        start(HELD, (1, 2, 3), checkpoint=CheckpointSpec((tmp_path / f"checkpoints-{number}").as_uri()))
        for number in range(2)
    ]
    for run in runs:
        run.at(10)
    runs[0].resize(3)
    runs[0].worlds(2, 3)
    os.kill(runs[0].launcher.pid, signal.SIGKILL)
    runs[0].launcher.wait()
    runs[0].assert_no_process(max_wait=30.0)

    status = runs[1].finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 0]
    assert runs[1].events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.SIZE_ASKED) == []
    undisturbed.assert_same(runs[1])
