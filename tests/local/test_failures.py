"""Runs that cannot succeed: each ends as failed, soon, with the kind and the words that tell why."""

from __future__ import annotations

import os
import signal
import time

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, sizes_of

pytestmark = pytest.mark.timeout(240)

TRAINS = Script("faulty.py", ("trains",))


def failed(run: ScriptedRun, kind: FailureKind) -> str:
    """Await the end. Returns the reason."""
    status = run.end()
    assert (status.phase, status.failure) == (Phase.FAILED, kind), run.report("another end")
    assert status.finished is not None
    assert run.events(*EventKind)[-1] == "finished"
    return status.reason


def test_a_rank_that_ends_early_is_no_success(start: Start) -> None:
    run = start(Script("faulty.py", ("exits_early",)))
    assert "while others were still training" in failed(run, FailureKind.EARLY_EXIT)
    assert sizes_of(run.status()) == [2, 0]


def test_an_exception_in_the_training_is_in_the_reason(start: Start) -> None:
    run = start(Script("faulty.py", ("raises",)))
    run.until_status(lambda status: status.started or status.phase.final, "training")
    begun = time.monotonic()
    assert "ValueError: the loss is not a number" in failed(run, FailureKind.RANK_FAILED)
    assert time.monotonic() - begun < 20, "Gloo's own time-out of 30 s was waited for"


def test_the_first_that_failed_is_named_and_not_those_that_failed_for_its_sake(start: Start) -> None:
    run = start(Script("faulty.py", ("one_raises",)), workers=(3, 3, 3), recovery=RecoverySpec(rank_failures=2))
    reason = failed(run, FailureKind.RANK_FAILED)
    status = run.status()
    first = status.first_failure
    assert first is not None
    assert (first.message, first.exit_code) == ("ValueError: no such sample: 4711", 1)
    begin, where = first.traceback.split("\n")[:2]
    assert begin == "Traceback (most recent call last):"
    assert "faulty.py" in where, "what leads to the script is told, too"
    assert 'raise ValueError("no such sample: 4711")' in first.traceback
    assert first.worker in {worker.name for worker in status.workers}
    assert reason.endswith(f"; rank {first.rank} on {first.worker} failed first: ValueError: no such sample: 4711")
    assert "HorovodInternalError" in run.log(), "the others did not fail for its sake"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("no-such-program", "--train"), "cannot start no-such-program"),
        (("python", "-c", "import no_such_module"), "No module named 'no_such_module'"),
        (("python", "no_such_script.py"), "no_such_script.py"),
    ],
)
def test_a_command_that_cannot_run_says_why(start: Start, command: tuple[str, ...], words: str) -> None:
    run = start(TRAINS, command=command)
    assert words in failed(run, FailureKind.RANK_FAILED)
    assert sizes_of(run.status()) == []


def test_the_scripts_exit_code_is_in_the_status(start: Start) -> None:
    run = start(TRAINS, command=("python", "-c", "raise SystemExit(77)"))
    failed(run, FailureKind.RANK_FAILED)
    assert run.status().exit_code == 77


def test_ranks_that_never_join_end_by_the_start_timeout(start: Start) -> None:
    script = Script("faulty.py", ("trains",), doors={"worker-0": "wait", "worker-1": "wait"})
    run = start(script, recovery=RecoverySpec(start_timeout=6.0))
    assert "no world of 1 ranks within" in failed(run, FailureKind.START_TIMEOUT)


def test_workers_that_cannot_start_end_by_the_start_timeout(start: Start) -> None:
    """Their interpreter does not even start."""
    run = start(TRAINS, environment={"PYTHONHOME": "/nowhere"}, recovery=RecoverySpec(start_timeout=5.0, backoff=0.5))
    failed(run, FailureKind.START_TIMEOUT)
    assert run.log().count("another will start") < 6, "the processes were started again and again without a pause"


def test_a_world_that_is_reset_too_often_ends_the_run(start: Start) -> None:
    recovery = RecoverySpec(reset_limit=0, backoff=0.1)
    run = start(Script("exact.py", holds=(10, 20)), (1, 2, 3), recovery=recovery)
    run.at(10)
    run.resize(3)  # That is none of those that count.
    run.worlds(2, 3)
    run.go(10)
    run.at(20)
    os.kill(run.rank_pid(2), signal.SIGKILL)
    assert "1 forced resets, 0 are allowed" in failed(run, FailureKind.RESET_LIMIT)


def test_ranks_that_fail_too_often_end_the_run(start: Start) -> None:
    doors = {"worker-2": "exit"}
    run = start(Script("exact.py", holds=(10,), doors=doors), (1, 2, 3), recovery=RecoverySpec(rank_failures=0))
    run.at(10)
    run.resize(3)
    assert "1 ranks failed, 0 are allowed" in failed(run, FailureKind.RANK_FAILED)
