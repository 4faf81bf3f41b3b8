"""Jobs that come to their time limit: no step is lost, and another job or another try goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from elastic_runtime.run.jobs import LAUNCHER
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind
from tests.local.test_reclaims import on_notice_only, resumed_at
from tests.paced import Script, Undisturbed, sizes_of, until
from tests.slurm.conftest import Start
from tests.slurm_run import SlurmRun

pytestmark = pytest.mark.timeout(600)

SLOW = Script("exact.py", holds=(20, 40), step_seconds=0.1)
LONG = Script("exact.py", holds=(5,), step_seconds=2.0)
"""Its 65 further steps take longer than the limit leaves."""
EACH_ONCE = {(step, 1) for step in range(1, 71)}


def limit(run: SlurmRun, part: str) -> None:
    """Have a job's time limit be a minute or two from now. Slurm counts in minutes of the job."""
    words = [f"JobId={run.jobs()[part].id}", "EndTime=now+90seconds"]
    subprocess.run(["scontrol", "update", *words], check=True)


@pytest.mark.shows(engine="horovod", fault="notice", place="slurm")
def test_a_worker_leaves_before_its_limit_and_another_job_takes_its_place(
    start: Start, undisturbed: Undisturbed
) -> None:
    run = start(SLOW, (1, 2, 2), recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    taken = run.worker(1).name
    limit(run, taken)
    run.until_status(lambda _: run.events(EventKind.NOTICE), "the notice")
    run.go(20)
    run.at(40)
    run.worlds(2, 1)
    run.until(lambda: "worker-2" in run.jobs(), "another job")
    run.until_status(lambda status: any(each.name == "worker-2" for each in status.workers), "its worker")
    run.go(40)

    run.succeed()

    assert run.events(EventKind.LEFT)[0] == f"left {taken}"
    assert run.events(EventKind.LOST) == []
    assert set(run.ledger().steps().items()) == EACH_ONCE, run.report("steps were lost")
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="notices", place="slurm")
def test_if_all_workers_come_to_it_at_once_the_state_is_stored(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = start(LONG, (2, 2, 2), checkpoint=on_notice_only(tmp_path), recovery=RecoverySpec(backoff=0.1))
    run.max_wait = 240.0
    run.at(5)
    old = {run.worker(rank).name for rank in (0, 1)}
    for name in old:
        limit(run, name)
    run.until_status(lambda _: len(run.events(EventKind.NOTICE)) == 2, "both notices")
    run.go(5)
    run.worlds(2, 0, 2)

    status = run.succeed()

    assert sizes_of(status) == [2, 0, 2, 0]
    assert set(run.events(EventKind.LEFT)[:2]) == {f"left {name}" for name in old}
    assert run.events(EventKind.LOST) == []
    assert len(resumed_at(status)) == 1
    assert set(run.ledger().steps().items()) == EACH_ONCE, run.report("steps were lost")
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="launcher", place="slurm")
def test_a_launcher_hands_over_before_its_limit(start: Start, tmp_path: Path) -> None:
    run = start(LONG, (1, 1, 1), checkpoint=on_notice_only(tmp_path))
    run.at(5)
    limit(run, LAUNCHER)
    run.go(5)
    run.until(run.is_over, "the launcher's job is over", 150.0, alive=False)

    status = run.status()

    assert not status.phase.final, "so that the place reports a lost launcher, and the task's next try resumes"
    assert status.checkpoint is not None
    assert status.checkpoint.step == max(run.ledger().steps()), "no step is lost"
    until(lambda: not run.jobs(), "no job is left", 60.0)
