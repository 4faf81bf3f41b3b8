"""What an engine must do whose ranks go from world to world: those who are left have the state, and hand it on."""

from __future__ import annotations

import pytest

from elastic_runtime.run.status import EventKind, Phase
from tests.engines.conftest import ONCE, Start, assert_same_end, stand
from tests.engines.kinds import Kind
from tests.local.harness import ScriptedRun

pytestmark = pytest.mark.timeout(240)


def concerns(kind: Kind) -> bool:
    return not kind.restarts


def assert_handed_on(run: ScriptedRun) -> None:
    """The state was never lost, nor a survivor of a killed rank."""
    assert "SIGABRT" not in run.log(), run.report("a survivor aborted")
    assert not run.events(EventKind.RESTARTED), run.report("restarted")


@pytest.mark.shows(engine=("horovod", "torch"), fault="rank", place="local")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_costs_what_came_after_the_last_commit(start: Start, undisturbed: ScriptedRun, rank: int) -> None:
    run = start((1, 2, 2), holds=(5,))
    stand(run, 5, 2)
    run.kill_ranks(rank)
    run.until_status(lambda status: len(status.history) >= 3 and status.world_size == 2, "two ranks again")
    assert_same_end(run, undisturbed)
    assert_handed_on(run)
    assert len(run.events(EventKind.RANK_FAILED)) == 1


def test_a_survivor_waits_below_the_minimum_with_the_state(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((2, 2, 2), holds=(5,))
    stand(run, 5, 2)
    run.kill_ranks(0)
    run.until_status(lambda _: run.events(EventKind.SUSPENDED), "too few")
    run.until_status(lambda status: status.phase is Phase.RUNNING and status.world_size == 2, "two ranks again")
    assert_same_end(run, undisturbed)
    assert_handed_on(run)


def test_a_newcomer_that_dies_on_its_way_costs_nothing(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((1, 2, 3), holds=(5,), doors={"worker-2": "kill"})
    stand(run, 5, 2)
    run.resize(3)
    run.at("worker-2")
    run.worlds(2, 3)
    assert_same_end(run, undisturbed)
    assert run.ledger().steps() == ONCE
    assert run.events(EventKind.RESTARTED) == []


def test_the_last_that_has_the_state_dies_while_a_newcomer_is_on_its_way(
    start: Start, undisturbed: ScriptedRun
) -> None:
    run = start((1, 1, 2), holds=(5,), doors={"worker-1": "wait"})
    stand(run, 5, 1)
    run.resize(2)
    run.at("worker-1")
    run.kill_ranks(0)
    run.until_status(lambda _: run.events(EventKind.RANK_FAILED), "the loss")
    run.go("worker-1")
    run.until_status(lambda _: run.events(EventKind.RESTARTED), "another start")
    assert_same_end(run, undisturbed)
