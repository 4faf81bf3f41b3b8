"""What an engine must do that starts its ranks anew for each world: nobody waits for ever, checkpoints are used."""

from __future__ import annotations

import pytest

from elastic_runtime.run.status import EventKind
from tests.engines.conftest import ONCE, Start, assert_same_end, stand
from tests.engines.kinds import Kind
from tests.local.harness import ScriptedRun

pytestmark = pytest.mark.timeout(240)


def concerns(kind: Kind) -> bool:
    return kind.restarts


def restarted(run: ScriptedRun, size: int) -> None:
    run.until_status(lambda status: run.events(EventKind.RESTARTED) and status.world_size == size, "another start")


@pytest.mark.shows(engine="torchrun", fault="rank", place="local")
@pytest.mark.shows(engine="horovodrun", fault="rank", by="test-long", place="local")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_takes_the_others_along(start: Start, undisturbed: ScriptedRun, rank: int) -> None:
    run = start((1, 2, 2), holds=(5,))
    stand(run, 5, 2)
    run.kill_ranks(rank)
    restarted(run, 2)
    assert_same_end(run, undisturbed)
    assert run.ledger().steps()[1] == 2, "there was no checkpoint"


@pytest.mark.shows(engine="torchrun", fault="rank", place="local")
@pytest.mark.shows(engine="horovodrun", fault="rank", by="test-long", place="local")
def test_a_loss_after_a_checkpoint_costs_what_came_after_it(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((1, 1, 2), holds=(5, 9))
    stand(run, 5, 1)
    run.resize(2)
    run.worlds(1, 2)
    run.go(5)
    stand(run, 9, 2)
    run.kill_ranks(1)
    restarted(run, 2)
    assert_same_end(run, undisturbed)
    assert run.ledger().steps() == ONCE | dict.fromkeys(range(6, 10), 2)


def test_too_few_are_waited_for(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((2, 2, 2), holds=(5,))
    stand(run, 5, 2)
    run.kill_ranks(0)
    run.until_status(lambda _: run.events(EventKind.SUSPENDED), "too few")
    restarted(run, 2)
    assert_same_end(run, undisturbed)


def test_a_newcomer_that_dies_on_its_way_costs_no_step(start: Start, undisturbed: ScriptedRun) -> None:
    run = start((1, 2, 3), holds=(5,), doors={"worker-2": "kill"})
    stand(run, 5, 2)
    run.resize(3)
    run.at("worker-2")
    restarted(run, 3)
    assert_same_end(run, undisturbed)
    assert run.ledger().steps() == ONCE
