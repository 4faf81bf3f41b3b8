"""Ranks that neither go on nor end, while the others wait for them: what bounds it, and who goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.spec import RecoverySpec, Timing
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)

FORMING = 10.0
QUICKLY = {
    "timing": Timing(forming=FORMING, stop_grace=1.0),
    "recovery": RecoverySpec(backoff=0.1),
    "environment": {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3"},
}


def stopped(run: ScriptedRun, rank: int) -> str:
    """That rank is, and its others wait for it, as the status says. Returns its worker."""
    worker = run.worker(rank).name
    os.kill(run.rank_pid(rank), signal.SIGSTOP)
    run.until_status(
        lambda status: f"waits for {worker}." in status.reason and f"stopped after {FORMING:.0f} s" in status.reason,
        f"the others wait for {worker}",
    )
    return worker


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_stopped_rank_is_waited_for_no_longer_than_a_world_may_form(
    start: Start, undisturbed: Undisturbed, rank: int
) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 3, 3), **QUICKLY)
    run.at(20)
    worker = stopped(run, rank)
    run.until_status(lambda status: sizes_of(status)[-1:] == [3] and status.generation > 1, "three ranks again")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.SUSPENDED, EventKind.RESTARTED) == []
    assert run.events(EventKind.RANK_FAILED) == [f"rank_failed {worker}"]
    assert f"rank {rank} ({worker}.0.0) has not left a world that is broken in time: it is stopped" in run.log()
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


def test_a_resize_goes_on_without_a_stopped_rank(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 2, 3), **QUICKLY)
    run.at(20)
    worker = run.worker(1).name
    os.kill(run.rank_pid(1), signal.SIGSTOP)
    run.resize(3)
    run.until_status(lambda status: sizes_of(status)[-1:] == [3], "three ranks")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.SUSPENDED, EventKind.RESTARTED) == []
    assert run.events(EventKind.RANK_FAILED) == [f"rank_failed {worker}"]
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


def test_a_new_rank_that_hangs_is_stopped_while_the_others_train(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(20,), doors={"worker-2": "wait"}), (1, 2, 3), **QUICKLY)
    run.at(20)
    run.resize(3)
    run.at("worker-2")
    run.until_status(lambda status: sizes_of(status)[-1:] == [3], "three ranks")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 3, 0]
    assert run.events(EventKind.RANK_FAILED) == ["rank_failed worker-2"]
    assert "rank worker-2.0.0 is not ready for a world in time: it is stopped" in run.log()
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


ALONE = [("horovod", "after", 1), ("torch", "after", 1), ("torch", "inside", 0), ("torchrun", "after", 0)]
MORE = [("horovod", "before", 0), ("horovod", "inside", 0), ("torch", "before", 0), ("torchrun", "inside", 0)]
"""Ends at once, which other tests have, too."""


@pytest.mark.parametrize(("engine", "when", "restarts"), ALONE + MORE if "ENGINES" in os.environ else ALONE)
def test_a_rank_that_fails_where_nobody_holds_a_state_ends_the_run(
    tmp_path: Path, engine: str, when: str, restarts: int
) -> None:
    run = ScriptedRun(
        tmp_path / "run",
        Script("stateless.py"),
        (3, 3, 3),
        engine=engine,
        timing=Timing(forming=FORMING, stop_grace=1.0),
        recovery=RecoverySpec(backoff=0.1, rank_failures=restarts or 10),
        environment={"WHEN": when, "ENGINE": engine},
    )
    try:
        status = run.start().end()
        assert status.failure is FailureKind.RANK_FAILED, run.report("rank_failed")
        assert "worker-1" in status.reason
        assert "code 1" in status.reason
        assert len(run.events(EventKind.RESTARTED)) == restarts
    finally:
        run.close()
