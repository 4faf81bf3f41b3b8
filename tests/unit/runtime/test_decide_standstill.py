"""The launcher's decision about a world that has stopped to commit: whether it stands still, and by whose fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionState
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.decide import decide
from elastic_runtime.launcher.decision.facts import (
    AskRanks,
    Clocks,
    CommitFact,
    Decision,
    Ending,
    EndStandstill,
    Facts,
    Finish,
    GiveUpWorker,
    Inquiry,
    ListRanks,
    RankStanding,
    Stall,
)
from elastic_runtime.launcher.decision.standstill import judge, limit_of
from elastic_runtime.run.status import Phase
from tests.unit.runtime.decide_bench import NOW, SETTLED, A, B, C, facts, session, settings, worker

ACTIVE = settings()
SHORT = settings(standstill=60.0)


def standing(rank: int, **what: object) -> RankStanding:
    """It waits in a collective at the 20th line, like any other."""
    name = "abcde"[rank]
    usual = RankStanding(
        rank, name, name, f"slot-{name}", answered=True, commits=20, collectives=40, waits=True, place="train.py:20"
    )
    return replace(usual, **what)  # type: ignore[arg-type]  # each test names fields of the right type


def ranks(count: int = 3, **changed: dict[str, object]) -> list[RankStanding]:
    """``r1={…}``: what is known of rank 1 instead."""
    return [standing(rank, **changed.get(f"r{rank}", {})) for rank in range(count)]


AT_WORK: dict[str, object] = {"waits": False, "place": "data.py:7"}
MUTE: dict[str, object] = {"answered": False, "commits": 0, "collectives": None, "waits": False, "place": ""}
UNCOUNTED: dict[str, object] = {"collectives": None}


@pytest.mark.parametrize(
    ("asked", "at_fault", "why"),
    [
        pytest.param(ranks(r1={**MUTE, "stopped": True}), [1], "b): its process is stopped", id="stopped"),
        pytest.param(ranks(r2={"stopped": True}), [2], "its process is stopped", id="stopped-after-its-answer"),
        pytest.param(ranks(r0=MUTE), [0], "rank 0 (a): its process does not answer", id="mute"),
        pytest.param(ranks(r1=AT_WORK), [1], "stands at data.py:7, while others wait", id="in-its-loader"),
        pytest.param(ranks(2, r1=AT_WORK), [1], "stands at data.py:7", id="in-its-loader-of-two"),
        pytest.param(ranks(r1=AT_WORK, r2=AT_WORK), [1, 2], "rank 2 (c): stands at data.py:7", id="most-in-loaders"),
        pytest.param(ranks(r1=AT_WORK | UNCOUNTED), [1], "data.py:7", id="in-its-loader-uncounted"),
        pytest.param(ranks(r2={"commits": 21}), [2], "has begun 21 commits in this world, the others 20", id="ahead"),
        pytest.param(ranks(r2={"commits": 19}), [2], "has begun 19 commits in this world, the others 20", id="behind"),
        pytest.param(ranks(r0={"collectives": 41}), [0], "41 collectives in this world, the others 40", id="one-more"),
        pytest.param(ranks(r0={"beside": 1}), [0], "1 collectives in groups of its own making", id="one-more-beside"),
        pytest.param(
            ranks(r0={"place": "train.py:31"}), [0], "at train.py:31, and the others at train.py:20", id="another"
        ),
        pytest.param(
            [replace(each, waits=False, place="train.py:20") for each in ranks(r1={"collectives": 39})],
            [1],
            "has begun 39 collectives",
            id="asynchronous-on-gpus",
        ),
        pytest.param(
            ranks(r0=AT_WORK | {"collectives": 42}, r1=AT_WORK | {"collectives": 42}),
            [2],
            "has begun 40 collectives in this world, the others 42",
            id="behind-those-whose-collectives-run-on-gpus",
        ),
        pytest.param(
            ranks(5, r1={"place": "a.py:1"}, r3={"place": "b.py:1"}), [1, 3], "b.py:1, and the others", id="two-of-five"
        ),
    ],
)
def test_who_differs_from_the_others_is_at_fault(asked: Sequence[RankStanding], at_fault: list[int], why: str) -> None:
    verdict = judge(asked)
    assert [each.rank for each in verdict.ranks] == at_fault
    assert why in verdict.why


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param(ranks(), "each rank waits for the others: rank 0 stands at train.py:20, rank 1", id="all-alike"),
        pytest.param(ranks(2, r1={"commits": 21}), "each rank waits for the others", id="two-that-differ"),
        pytest.param(ranks(4, r2={"place": "b"}, r3={"place": "b"}), "each rank waits", id="two-against-two"),
        pytest.param(ranks(r0=MUTE, r1=MUTE, r2=MUTE), "no rank answers", id="all-mute"),
        pytest.param([replace(each, stopped=True) for each in ranks()], "all processes are stopped", id="all-stopped"),
        pytest.param(ranks(1), "each rank waits", id="one-rank"),
    ],
)
def test_nobody_is_at_fault_where_nobody_differs(asked: Sequence[RankStanding], why: str) -> None:
    verdict = judge(asked)
    assert verdict.ranks == ()
    assert why in verdict.why
    assert not verdict.at_work


def test_ranks_that_are_all_at_work_wait_for_nobody() -> None:
    assert judge([replace(each, waits=False) for each in ranks()]).at_work


def given(quiet: float, longest: float = 0.5, **more: object) -> Facts:
    """Three ranks train, and no commit was told for so long."""
    commits = CommitFact(NOW - quiet, longest)
    known = facts(3, A, B, C, session=session(SETTLED, "a", "b", "c"), commits=commits, trained=True)
    return replace(known, **more)  # type: ignore[arg-type]  # each test names fields of the right type


def inquiry(asked: Sequence[RankStanding], ago: float = 1.0, acted: float | None = None) -> Inquiry:
    return Inquiry(NOW - ago, tuple(asked), 20, acted)


def decided(known: Facts, by: object = SHORT) -> Decision:
    return decide(known, Clocks(launched=0.0), by, NOW)  # type: ignore[arg-type]


def asks(known: Facts, by: object = SHORT) -> bool:
    return any(isinstance(each, AskRanks) and not each.early for each in decided(known, by).actions)


@pytest.mark.parametrize(("longest", "limit"), [(0.5, 600.0), (30.0, 600.0), (60.0, 1200.0)])
def test_the_usual_limit_follows_the_usual_interval(longest: float, limit: float) -> None:
    assert not asks(given(limit, longest), ACTIVE)
    assert asks(given(limit + 1.0, longest), ACTIVE)


def test_a_limit_that_is_set_is_the_limit() -> None:
    assert not asks(given(60.0, longest=30.0))
    assert asks(given(60.5, longest=30.0))
    assert not asks(given(10**6), settings(standstill=0.0))


def test_the_first_commit_of_a_world_has_twice_as_long() -> None:
    assert not asks(given(0.0, commits=CommitFact(NOW - 119.0, 0.5, begun=False)))
    assert asks(given(0.0, commits=CommitFact(NOW - 121.0, 0.5, begun=False)))


def unpaced(quiet: float, **more: object) -> Facts:
    """No two commits were seen in this run."""
    return given(0.0, **{"commits": CommitFact(NOW - quiet, None, begun=False), **more})


def quietly(asked: Sequence[RankStanding], ago: float = 1.0, **more: object) -> Inquiry:
    return replace(inquiry(asked, ago), quiet=True, **more)  # type: ignore[arg-type]


def test_before_the_second_commit_of_a_run_ranks_are_asked_without_a_word_in_the_log() -> None:
    assert not asks(unpaced(119.0))
    [ask] = decided(unpaced(121.0)).actions
    assert ask == AskRanks("no rank has committed for more than 120 s", quiet=True)
    assert decided(unpaced(121.0)).reason == "3 ranks train"
    moves = unpaced(180.0, inquiry=quietly(ranks(r1=AT_WORK), 50.0))
    assert decided(moves) == Decision((), Phase.RUNNING, "3 ranks train"), "the next question is not due"
    assert decided(replace(moves, inquiry=quietly(ranks(r1=AT_WORK), 61.0))).actions == (ask,)


def test_a_rank_that_does_not_move_is_asked_aloud_and_then_the_rank_at_fault_is_stopped() -> None:
    still = unpaced(182.0, inquiry=quietly(ranks(r1=AT_WORK), proves=True))
    [ask] = decided(still).actions
    assert isinstance(ask, AskRanks)
    assert not ask.quiet
    assert ask.reason.startswith("no rank has committed for more than 120 s")
    [end] = decided(replace(still, inquiry=replace(inquiry(ranks(r1=AT_WORK)), proves=True))).actions
    assert isinstance(end, EndStandstill)
    assert end.rank_ids == ("b",)


WORKING = tuple(replace(each, waits=False) for each in ranks())


@pytest.mark.parametrize("known", [quietly(WORKING, proves=True), inquiry(WORKING), inquiry(ranks(r1=AT_WORK))])
def test_a_script_that_takes_its_time_is_left_alone_for_a_day(known: Inquiry) -> None:
    """As one that compiles, or commits after each epoch of hours."""
    assert decided(unpaced(86000.0, inquiry=known)).actions == ()
    loud = replace(known, quiet=False)
    assert isinstance(decided(unpaced(86401.0, inquiry=loud)).actions[0], EndStandstill)
    plain = session(SETTLED, "a", "b", "c")
    assert decided(unpaced(10**6, inquiry=known, session=replace(plain, holders=None))).actions == (), "nobody can know"


def test_a_world_that_is_about_to_have_its_state_is_judged_and_a_plain_loop_is_not() -> None:
    plain = replace(session(SETTLED, "a", "b", "c"), holders=None)
    assert asks(given(0.0, commits=CommitFact(NOW - 121.0, 0.5, begun=False), session=plain))
    assert not asks(given(10**6, session=plain))


def test_one_that_may_write_its_last_checkpoint_has_a_day() -> None:
    ended = Ending(((0, 9),), (1, 2))
    assert not asks(given(86399.0, ended=ended))
    assert asks(given(86401.0, ended=ended))


@pytest.mark.parametrize(("told", "again"), [(7, True), (8, False)])
def test_where_steps_are_not_known_it_is_the_same_standstill_without_a_commit_between(told: int, again: bool) -> None:
    known = given(62.0, inquiry=replace(inquiry(ranks(r1=AT_WORK)), step=None), stalls=(Stall(None, (1,), told=7),))
    commits = replace(known.commits, told=told) if known.commits else None
    actions = decided(replace(known, commits=commits)).actions
    assert (actions == (Finish(Phase.FAILED, FailureKind.STANDSTILL),)) is again


def test_time_counts_from_the_end_of_what_ranks_were_busy_with() -> None:
    assert not asks(given(500.0, excused=NOW + 3000.0))
    assert not asks(given(500.0, excused=NOW - 59.0))
    assert asks(given(500.0, excused=NOW - 61.0))


def test_ranks_that_are_started_anew_are_judged_by_the_steps_that_they_report() -> None:
    anew = replace(session(SETTLED, "a", "b", "c", holders=None), holders=None, restarts=True)
    decision = decided(given(61.0, session=anew))
    assert decision.reason == "no rank has reported a step for more than 60 s: the ranks are asked where they stand"
    assert asks(given(61.0, session=anew))
    assert not asks(given(999.0, session=anew, commits=CommitFact(NOW - 999.0, None, begun=False))), "it reports none"


LEAVING = [worker(name, leaving=True) for name in "abc"]


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(given(999.0, commits=None), id="a-script-that-never-commits"),
        pytest.param(given(999.0, session=session(SETTLED, "a", "b", "c", holders=())), id="no-state-to-go-on-from"),
        pytest.param(given(999.0, ending=Ending(((0, 9),), (1, 2))), id="ranks-that-end"),
        pytest.param(given(999.0, workers=tuple(LEAVING)), id="all-will-be-taken"),
        *(
            pytest.param(given(999.0, session=session(each, "a", "b", "c")), id=each)
            for each in SessionState
            if each not in (SETTLED, SessionState.ENDED)
        ),
    ],
)
def test_what_has_other_limits_is_not_judged(known: Facts) -> None:
    assert not asks(known)


def test_those_that_wait_for_others_to_take_over_are_not_judged_once_these_are_listed() -> None:
    known = given(999.0, session=session(SETTLED, *"abcd", holders=("a", "b", "c")))
    assert limit_of(replace(known, workers=(*LEAVING, worker("d"))), SHORT) is None
    assert limit_of(replace(known, workers=(A, *LEAVING[1:], worker("d"))), SHORT) == 60.0


def test_those_that_stay_are_judged() -> None:
    assert asks(given(999.0, workers=(A, B, LEAVING[2])), settings(3, 3, standstill=60.0))


def test_ranks_are_asked_once_and_have_some_seconds() -> None:
    reason = "no rank has committed for more than 60 s: the ranks are asked where they stand"
    assert decided(given(61.0)) == Decision((AskRanks(reason),), Phase.RUNNING, reason)
    waits = given(72.0, inquiry=inquiry(ranks(r1=MUTE), ago=2.0))
    assert decided(waits) == Decision((), Phase.RUNNING, reason)
    late = decided(replace(waits, inquiry=inquiry(ranks(r1=MUTE), ago=10.5)))
    assert [each.rank_ids for each in late.actions if isinstance(each, EndStandstill)] == [("b",)]


def test_what_was_asked_before_the_last_commit_is_of_no_use() -> None:
    assert asks(given(61.0, inquiry=inquiry(ranks(r1=AT_WORK), ago=70.0)))


def test_the_rank_at_fault_is_named_and_stopped_alone() -> None:
    reason = (
        "no rank has committed for more than 60 s at step 20: rank 1 (b): stands at data.py:7, while others wait in a "
        "collective; it is replaced"
    )
    stall = Stall(20, (1,), ("slot-b",))
    assert decided(given(62.0, inquiry=inquiry(ranks(r1=AT_WORK)))) == Decision(
        (EndStandstill(stall, ("b",), reason),), Phase.RUNNING, reason
    )


def test_where_nobody_is_at_fault_all_form_another_world() -> None:
    [action] = decided(given(62.0, inquiry=inquiry(ranks()))).actions
    assert isinstance(action, EndStandstill)
    assert (action.stall, action.rank_ids) == (Stall(20), ())
    assert "each rank waits for the others" in action.reason
    assert action.reason.endswith("; all form a new world")


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (Stall(20, (1,), ("slot-x",)), True),
        (Stall(20, (2,), ("slot-b",)), True),
        (Stall(19, (1,), ("slot-b",)), False),
        (Stall(20, (0,), ("slot-a",)), False),
        (Stall(20), False),
        (Stall(None, (1,), ("slot-b",)), False),
    ],
)
def test_the_same_rank_at_the_same_step_twice_is_the_end(before: Stall, again: bool) -> None:
    known = given(62.0, inquiry=inquiry(ranks(r1=AT_WORK)), stalls=(before, Stall(3, (1,))))
    decision = decided(known)
    assert (decision.actions == (Finish(Phase.FAILED, FailureKind.STANDSTILL),)) is again
    if again:
        assert decision.reason.startswith(
            "the training stands still at step 20 for the second time: rank 1 (b): stands"
        )
        assert decision.reason.endswith("put that under elastic_runtime.busy()"), "it may be a long evaluation"


def test_a_world_that_stands_still_twice_by_nobodys_fault_is_the_end() -> None:
    decision = decided(given(62.0, inquiry=inquiry(ranks()), stalls=(Stall(20),)))
    assert decision.actions == (Finish(Phase.FAILED, FailureKind.STANDSTILL),)


def test_ranks_that_are_all_at_work_have_three_times_as_long() -> None:
    """They may evaluate, which the script has not said."""
    at_work = [replace(each, waits=False) for each in ranks()]
    patient = decided(given(170.0, inquiry=inquiry(at_work, ago=109.0)))
    assert patient.actions == ()
    assert "no rank waits for another" in patient.reason
    assert "elastic_runtime.busy()" in patient.reason
    assert asks(given(181.0, inquiry=inquiry(at_work, ago=120.0))), "where they stand now"
    [action] = decided(given(182.0, inquiry=inquiry(at_work, ago=1.0))).actions
    assert isinstance(action, EndStandstill)
    assert action.rank_ids == ()


def test_a_process_that_does_not_end_costs_its_worker() -> None:
    stopped = ranks(r1={"stopped": True})
    bound = SHORT.timing.stop_grace + SHORT.timing.forming
    waits = decided(given(500.0, inquiry=inquiry(stopped, ago=200.0, acted=NOW - bound)))
    assert waits.actions == ()
    assert "rank 1 (b): its process is stopped" in waits.reason
    late = decided(given(500.0, inquiry=inquiry(stopped, ago=200.0, acted=NOW - bound - 1.0)))
    assert late.actions == (GiveUpWorker("b", "its rank stands still, and does not end"),)


def test_a_notice_is_handled_while_a_world_stands_still() -> None:
    """Or an evaluation would cost a worker that leaves its hand-over."""
    at_work = [replace(each, waits=False) for each in ranks()]
    noticed = given(
        100.0, workers=(A, B, worker("c", leaving=True, running=True), worker("d")), inquiry=inquiry(at_work)
    )
    assert decided(noticed).actions == (ListRanks(("a", "b", "d"), 2),)
