"""A rank that has had a shard for longer than its lease: it is stopped, and others get what it has."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from elastic_runtime.engines.base import SessionState
from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.launcher.decision.decide import decide
from elastic_runtime.launcher.decision.facts import Decision, EndStandstill, Facts, Finish, GiveUpWorker, Stall
from elastic_runtime.launcher.decision.shard_queues import Lease, ShardQueues
from elastic_runtime.protocol.shards import ShardWanted
from elastic_runtime.run.status import Phase
from tests.unit.runtime.decide_bench import FRESH, NOW, SETTLED, USUAL, A, B, C, facts, session
from tests.unit.runtime.rounds_bench import Launcher, Rank

WANTED = ShardWanted("step", "digest", step=7, size=3, number=0, lease=30.0)
LATE = Lease("w.0.1", "step", 7, renewed=NOW - 31.0, seconds=30.0)
STALL = Stall(7, slots=("w.0",))


def training(*leases: Lease, state: SessionState = SETTLED, **others: Any) -> Facts:
    return facts(3, A, B, C, session=session(state, "a", "b", "c"), trained=True, leases=leases, **others)


def decided(given: Facts) -> Decision:
    return decide(given, FRESH, USUAL, NOW)


def test_it_is_stopped_and_named() -> None:
    decision = decided(training(LATE, replace(LATE, rank_id="v.0.0", renewed=NOW - 29.0)))
    [action] = decision.actions
    assert isinstance(action, EndStandstill)
    assert (action.stall, action.rank_ids) == (STALL, ("w.0.1",))
    assert action.reason == decision.reason
    assert "rank w.0.1 has had a shard of step 7 for 31 s, and its lease was of 30 s; it is replaced" in action.reason


@pytest.mark.parametrize(
    "given",
    [
        training(),
        training(replace(LATE, renewed=NOW - 30.0)),
        training(replace(LATE, stopped=NOW - 5.0)),
        training(LATE, state=SessionState.FORMING),
    ],
    ids=["nothing held", "renewed", "stopped already", "its world is over"],
)
def test_who_is_not_late_is_not_stopped(given: Facts) -> None:
    assert not [each for each in decided(given).actions if isinstance(each, EndStandstill | GiveUpWorker | Finish)]


def test_the_second_time_at_the_same_step_the_run_fails() -> None:
    decision = decided(training(LATE, stalls=(STALL,)))
    assert decision.actions == (Finish(Phase.FAILED, FailureKind.STANDSTILL),)
    assert "for the second time" in decision.reason
    assert "Shards(lease=" in decision.reason
    assert isinstance(decided(training(LATE, stalls=(replace(STALL, step=6),))).actions[0], EndStandstill)


def test_one_that_does_not_end_goes_with_its_worker() -> None:
    grace = USUAL.timing.stop_grace + USUAL.timing.forming
    [action] = decided(training(replace(LATE, stopped=NOW - grace - 1.0))).actions
    assert isinstance(action, GiveUpWorker)
    assert action.name == "w"


def test_each_request_renews_a_lease_and_the_last_answer_ends_it() -> None:
    queues = ShardQueues()
    assert list(queues.leases(1)) == []
    queues.take(1, "a", replace(WANTED, size=1), 10.0)
    queues.take(1, "a", replace(WANTED, size=1), 20.0)
    assert list(queues.leases(1)) == [Lease("a", "step", 7, 20.0, 30.0)]
    assert list(queues.leases(2)) == [], "of another world"
    queues.take(1, "a", replace(WANTED, size=1, number=1), 25.0)
    assert list(queues.leases(1)) == []


def test_without_a_limit_there_are_none() -> None:
    queues = ShardQueues()
    queues.take(1, "a", replace(WANTED, lease=0.0), 10.0)
    assert list(queues.leases(1)) == []


def test_what_a_stopped_rank_says_late_is_refused() -> None:
    queues = ShardQueues()
    queues.take(1, "a", WANTED, 0.0)
    queues.take(1, "b", WANTED, 0.0)
    queues.stop(["a", "somebody"], 31.0)
    assert "longer than its lease" in queues.take(1, "a", replace(WANTED, number=1), 32.0).refused
    assert queues.take(1, "b", replace(WANTED, number=1), 32.0).position == 2
    assert [(each.rank_id, each.stopped) for each in queues.leases(1)] == [("a", 31.0), ("b", None)]
    assert queues.take(2, "b", WANTED, 40.0).position == 0, "in the next world others get it"


def test_a_rank_renews_its_lease_until_it_has_lost_it() -> None:
    launcher = Launcher(Random(0))
    rank = Rank("a", launcher, {"count": 5, "lease": 60})
    launcher.turns.wait = lambda until=None: None  # type: ignore[method-assign]  # the only thread
    step = next(iter(rank.shards))
    step.renew()
    assert not list(launcher.queues.leases(launcher.world)), "it has no shard yet"
    next(step)
    [first] = launcher.queues.leases(launcher.world)
    step.renew()
    [second] = launcher.queues.leases(launcher.world)
    assert second.renewed > first.renewed
    assert second.seconds == 60.0
    assert step.taken == 1
    launcher.queues.stop(["a"], launcher.now)
    with pytest.raises(InvalidSettings, match="longer than its lease"):
        step.renew()
