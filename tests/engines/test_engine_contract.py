"""What every engine must do, with real ranks: form worlds and hand the state on, whatever happens to its ranks.

Each run ends with the very weights of one that nobody has disturbed.
"""

from __future__ import annotations

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import EventKind, Phase
from tests.engines.conftest import ONCE, Start, assert_same_end, stand
from tests.local.harness import ScriptedRun
from tests.paced import sizes_of

pytestmark = pytest.mark.timeout(240)


def test_a_clean_end(undisturbed: ScriptedRun) -> None:
    status = undisturbed.status()
    assert (status.phase, sizes_of(status)) == (Phase.SUCCEEDED, [2, 0])
    assert undisturbed.ledger().steps() == ONCE
    assert undisturbed.events(EventKind.RANK_FAILED, EventKind.LOST, EventKind.RESTARTED) == []
    assert set(undisturbed.ledger().sizes().values()) == {2}
    assert status.metrics == {"epoch": 2}


@pytest.mark.shows(engine=("horovod", "torch", "torchrun"), fault="resize", place="local")
@pytest.mark.shows(engine="horovodrun", fault="resize", by="test-long", place="local")
def test_newcomers_join_and_go_and_no_step_is_lost(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((1, 1, 3), holds=(5, 15))
    stand(run, 5, 1)
    run.resize(2)
    run.worlds(1, 2)
    run.go(5)
    stand(run, 15, 2)
    run.resize(3)
    run.worlds(1, 2, 3)
    run.resize(1)
    run.until_status(lambda status: sizes_of(status)[-1:] == [1], "one rank again")
    assert_same_end(run, undisturbed)
    assert run.ledger().steps() == ONCE
    assert run.events(EventKind.RANK_FAILED, EventKind.LOST, EventKind.RESTARTED) == []


@pytest.mark.shows(engine=("horovod", "torch", "torchrun"), fault="notice", place="local")
@pytest.mark.shows(engine="horovodrun", fault="notice", by="test-long", place="local")
def test_the_first_rank_leaves_with_a_notice(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((1, 2, 2), holds=(5,))
    stand(run, 5, 2)
    run.reclaim(first := run.worker(0).name)
    run.worlds(2, 1, 2)
    assert_same_end(run, undisturbed)
    assert run.ledger().steps() == ONCE
    assert run.events(EventKind.LEFT)[0] == f"left {first}"
    assert f"rank {first}.0.0 ended with code 0" in run.log()
    assert run.events(EventKind.RANK_FAILED, EventKind.LOST, EventKind.RESTARTED) == []


@pytest.mark.shows(engine=("horovod", "torch", "torchrun"), fault="all", place="local")
@pytest.mark.shows(engine="horovodrun", fault="all", by="test-long", place="local")
def test_all_lost_is_a_new_start(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((1, 2, 2), holds=(5,))
    stand(run, 5, 2)
    run.kill_ranks(0, 1)
    run.until_status(lambda _: run.events(EventKind.RESTARTED), "another start")
    assert_same_end(run, undisturbed)
    assert run.ledger().steps()[1] == 2


def test_a_rank_that_fails_before_there_is_a_world_ends_the_run(start: Start) -> None:
    run = start((2, 2, 2), doors={"worker-1": "exit"})
    status = run.end()
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.RANK_FAILED)
    assert "code 7" in status.reason


def test_a_rank_that_ends_while_others_train_fails_the_run(start: Start) -> None:
    status = start((2, 2, 2), leaves=(5,)).end()
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.EARLY_EXIT)


def test_cancelled_ranks_end(start: Start) -> None:
    run = start((1, 2, 2), holds=(5,))
    stand(run, 5, 2)
    run.folder.ask_to_end("the test wants it")
    status = run.end()
    assert (status.phase, status.failure) == (Phase.FAILED, FailureKind.CANCELLED)
