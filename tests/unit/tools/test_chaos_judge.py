"""A round of ``make chaos`` is judged by its end, its weights, what it leaves, and by pauses that no fault explains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_json, to_json
from tests.chaos.judge import (
    LONGEST_PAUSE,
    Applied,
    Digests,
    Expected,
    Look,
    Outcome,
    Pause,
    Span,
    Try,
    apart,
    explanations,
    judge,
    merged,
    overlap,
    pauses,
)
from tests.chaos.plan import Fault, FaultKind

TIMES = st.floats(0.0, 100.0)
SPANS = st.builds(lambda a, b: Span(min(a, b), max(a, b)), TIMES, TIMES)
WEIGHTS = (0.5, -0.25)
EXPECTED = Expected(WEIGHTS)
GOOD = Outcome(ended="", weights=WEIGHTS, pauses=(), left=())


def stop(at: float, seconds: float, pid: int = 7, kind: FaultKind = FaultKind.STOP_RANK) -> Applied:
    return Applied(Fault(at, kind, seconds=seconds), at, (pid,), until=at + seconds)


def kill(at: float, *pids: int, kind: FaultKind = FaultKind.KILL_RANK) -> Applied:
    return Applied(Fault(at, kind), at, pids)


# Pauses


def test_pauses_are_between_steps_of_any_rank_and_up_to_the_end_the_worst_first() -> None:
    found = pauses([12.0, 10.0, 11.0, 11.0], end=16.0, reasons=[])
    assert [(pause.span.begin, pause.span.end) for pause in found][:2] == [(12.0, 16.0), (10.0, 11.0)]
    assert found[0].unexplained == 4.0


def test_a_reason_takes_off_what_it_covers_and_no_more() -> None:
    found = pauses([10.0, 40.0], end=40.0, reasons=[Span(5.0, 22.0), Span(20.0, 25.0), Span(39.0, 60.0)])
    assert found[0] == Pause(Span(10.0, 40.0), explained=16.0)
    assert found[0].unexplained == 14.0


def test_a_run_without_a_step_has_no_pause() -> None:
    assert pauses([], end=16.0, reasons=[]) == []


@given(st.lists(TIMES, min_size=1), st.lists(SPANS))
def test_pauses_cover_the_time_from_the_first_step_to_the_end_once(steps: list[float], reasons: list[Span]) -> None:
    found = pauses(steps, end=101.0, reasons=reasons)
    assert sum(pause.span.seconds for pause in found) == pytest.approx(101.0 - min(steps))
    assert all(-1e-9 <= pause.unexplained <= pause.span.seconds for pause in found)


@given(st.lists(SPANS), TIMES)
def test_merged_spans_hold_the_same_moments_each_once(spans: list[Span], moment: float) -> None:
    def inside(of: list[Span]) -> int:
        return sum(span.begin <= moment < span.end for span in of)

    assert inside(merged(spans)) == min(1, inside(spans))


@given(SPANS, st.lists(SPANS))
def test_an_overlap_is_never_longer_than_either(span: Span, others: list[Span]) -> None:
    disjoint = merged(others)
    assert overlap(span, disjoint) <= min(span.seconds, sum(other.seconds for other in disjoint)) + 1e-9


# What explains a pause


def test_a_stopped_process_explains_the_time_for_which_it_stands() -> None:
    assert explanations([stop(5.0, 12.0)], [], minimum=1, end=100.0) == [Span(5.0, 17.0)]


def test_a_stop_ends_with_the_run() -> None:
    assert explanations([stop(5.0, 12.0)], [], minimum=1, end=9.0) == [Span(5.0, 9.0)]


@pytest.mark.parametrize(
    ("killed", "until"),
    [
        (kill(8.0, 7), 8.0),
        (kill(8.0, 6, 7, kind=FaultKind.KILL_ALL_RANKS), 8.0),
        (kill(8.0, 9), 17.0),
        (kill(4.0, 7), 17.0),
    ],
)
def test_a_stopped_process_that_is_killed_explains_nothing_any_more(killed: Applied, until: float) -> None:
    applied = sorted([stop(5.0, 12.0), killed], key=lambda each: each.at)
    assert explanations(applied, [], minimum=1, end=100.0) == [Span(5.0, until)]


@pytest.mark.parametrize("kind", [FaultKind.PAUSE, FaultKind.LOSE_LAUNCHER])
@pytest.mark.parametrize(("until", "end"), [(9.0, 9.0), (None, 100.0)])
def test_a_run_that_we_pause_or_that_has_no_launcher_explains_itself(
    kind: FaultKind, until: float | None, end: float
) -> None:
    applied = [Applied(Fault(5.0, kind, seconds=1.0), 5.0, until=until)]
    assert explanations(applied, [], minimum=1, end=100.0) == [Span(5.0, end)]


def test_kills_sizes_and_notices_explain_no_pause() -> None:
    done = [
        kill(1.0, 7),
        kill(1.0, 7, 8, kind=FaultKind.KILL_ALL_RANKS),
        Applied(Fault(2.0, FaultKind.RESIZE, size=1), 2.0),
        Applied(Fault(3.0, FaultKind.NOTICE_ALL, seconds=30.0), 3.0, workers=("worker-0",)),
    ]
    assert explanations(done, [], minimum=1, end=100.0) == []


def test_a_run_that_is_suspended_for_want_of_workers_explains_itself_until_they_are_back() -> None:
    looks = [Look(1.0, False, 2), Look(5.0, True, 1), Look(9.0, True, 0), Look(20.0, True, 2), Look(21.0, False, 2)]
    assert merged(explanations([], looks, minimum=2, end=100.0)) == [Span(5.0, 20.0)]


def test_a_run_that_is_suspended_to_its_end_explains_itself_until_then() -> None:
    assert explanations([], [Look(5.0, True, 1)], minimum=2, end=30.0) == [Span(5.0, 30.0)]


def test_too_few_workers_are_no_reason_while_the_run_says_that_it_trains() -> None:
    assert explanations([], [Look(5.0, False, 1)], minimum=2, end=30.0) == []


# The verdict


def test_a_round_as_the_undisturbed_one_is_right() -> None:
    assert judge(GOOD, [], EXPECTED).troubles == []


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome("failed, max_wait_exceeded", WEIGHTS, (), ()), "failed, max_wait_exceeded"),
        (Outcome("", (0.5, -0.25 + 2**-54), (), ()), "1 of 2 weights differ, by up to 5.55e-17"),
        (Outcome("", (0.5, float("nan")), (), ()), "1 of 2 weights differ, by up to nan"),
        (Outcome("", (), (), ()), "0 weights, 2 are expected"),
        (Outcome("", WEIGHTS, (), ("process 12", "launcher.key")), "left behind: process 12, launcher.key"),
    ],
)
def test_what_is_wrong_is_said(outcome: Outcome, words: str) -> None:
    assert judge(outcome, [], EXPECTED).troubles == [words]


def test_nothing_is_as_good_as_no_weights() -> None:
    assert judge(Outcome("", (), (), ()), [], Expected(())).troubles == ["0 weights, 0 are expected"]


def test_only_a_pause_that_is_too_long_without_a_reason_is_a_trouble() -> None:
    explained = Pause(Span(0.0, 40.0), explained=40.0 - LONGEST_PAUSE)
    assert judge(Outcome("", WEIGHTS, (explained,), ()), [], EXPECTED).troubles == []
    unexplained = Pause(Span(0.0, 40.0), explained=24.0)
    assert judge(Outcome("", WEIGHTS, (explained, unexplained), ()), [], EXPECTED).troubles == [
        "no step for 40.0 s, of which 16.0 s are without a reason"
    ]


SIZE = Applied(Fault(1.0, FaultKind.RESIZE, size=1), 1.0)


def notice(seconds: float) -> Applied:
    return Applied(Fault(2.0, FaultKind.NOTICE_ALL, seconds=seconds), 2.0, workers=("worker-0",))


@pytest.mark.parametrize("applied", [[], [SIZE], [SIZE, notice(6.0)]])
def test_sizes_and_notices_in_time_cost_no_step(applied: list[Applied]) -> None:
    outcome = Outcome("", WEIGHTS, (), (), repeated=2)
    assert judge(outcome, applied, EXPECTED).troubles == ["2 steps were done again, and nobody was killed"]


@pytest.mark.parametrize("done", [kill(3.0, 7), stop(3.0, 0.5), notice(0.1)])
def test_kills_stops_and_short_notices_may_cost_steps(done: Applied) -> None:
    assert judge(Outcome("", WEIGHTS, (), (), repeated=2), [SIZE, notice(6.0), done], EXPECTED).troubles == []


def test_all_that_is_wrong_is_said() -> None:
    outcome = Outcome("not over after 180 s", (), (Pause(Span(0.0, 100.0), 0.0),), ("process 12",))
    assert len(judge(outcome, [], EXPECTED).troubles) == 3


# Digests of whole states

STATE = {"model": "a1", "optimizer": "b1", "ema": "c1", "scaler": "d1"}
WITH_DIGESTS = Expected(WEIGHTS, {5: STATE, 10: STATE})


def digests(step: int, rank: int, size: int, **others: str) -> Digests:
    return Digests(step, rank, size, {**STATE, **others})


def verdict(*found: Digests, ended: str = "") -> list[str]:
    return judge(Outcome(ended, WEIGHTS, (), (), digests=found), [], WITH_DIGESTS).troubles


WHOLE = [digests(step, rank, 2) for step in (5, 10) for rank in (0, 1)]


def test_ranks_with_the_undisturbed_state_after_each_step_are_right_also_where_it_was_done_again() -> None:
    assert verdict(*WHOLE, digests(5, 2, 3)) == []


def test_a_rank_that_differs_is_named_with_the_entry_and_the_first_step() -> None:
    assert verdict(WHOLE[0], *WHOLE[2:], digests(10, 2, 3, ema="c3"), digests(5, 1, 2, ema="c2")) == [
        "after step 5, ema differs on rank 1 of 2 from the undisturbed run's"
    ]


def test_entries_that_differ_alike_at_the_same_ranks_are_named_together() -> None:
    found = [
        digests(5, 1, 3, ema="c2", scaler="d2", optimizer="b2"),
        digests(5, 2, 3, ema="c3", scaler="d3", optimizer="b2", model="a2"),
    ]
    assert verdict(*WHOLE, *found) == [
        "after step 5, model differs on rank 2 of 3 from the undisturbed run's; "
        "optimizer differs on rank 1 of 3, rank 2 of 3 from the undisturbed run's alike; "
        "ema, scaler differ on rank 1 of 3, rank 2 of 3 from the undisturbed run's, and from each other"
    ]


def test_ranks_that_are_alike_and_all_others_than_the_undisturbed_ones_are_said_to_be() -> None:
    found = [digests(10, rank, 2, ema="c2") for rank in (0, 1)]
    assert verdict(*WHOLE[:2], *found) == [
        "after step 10, ema differs on rank 0 of 2, rank 1 of 2 from the undisturbed run's alike"
    ]


def test_an_entry_that_is_missing_or_too_many_differs() -> None:
    assert verdict(*WHOLE, Digests(5, 0, 1, {name: STATE[name] for name in ("model", "optimizer", "scaler")})) == [
        "after step 5, ema differs on rank 0 of 1 from the undisturbed run's"
    ]
    assert verdict(*WHOLE, digests(5, 0, 1, more="e1")) == [
        "after step 5, more differs on rank 0 of 1 from the undisturbed run's"
    ]


def test_steps_without_digests_are_wrong_unless_the_run_has_not_come_to_them() -> None:
    assert verdict(*WHOLE[:2]) == ["no digests after steps 10"]
    assert verdict(*WHOLE[:2], ended="failed, max_wait_exceeded") == ["failed, max_wait_exceeded"]


def test_a_step_that_the_undisturbed_run_has_not_done_is_wrong() -> None:
    assert len(verdict(*WHOLE, digests(15, 0, 1))) == 1


def test_an_undisturbed_run_whose_ranks_differ_is_not_as_expected_itself() -> None:
    outcome = Outcome("", WEIGHTS, (), (), digests=(*WHOLE[:3], digests(10, 1, 2, ema="c2")))
    assert judge(outcome, [], Expected.by(outcome)).apart.startswith("after step 10, ema differs on rank 0 of 2")


def test_those_that_are_apart_are_kept_in_order() -> None:
    late, early = digests(10, 0, 1, ema="c2"), digests(5, 1, 2, ema="c2")
    assert apart([late, *WHOLE, early], WITH_DIGESTS) == [early, late]


def test_what_is_kept_of_a_round_can_be_read_again() -> None:
    outcome = Outcome("", WEIGHTS, (), (), digests=tuple(WHOLE))
    assert from_json(Outcome, to_json(outcome)) == outcome


# Several launchers


@pytest.mark.parametrize(
    ("tries", "words"),
    [
        ((Try(1, 40, stored=30), Try(31, 112)), ""),
        ((Try(1, 40, stored=30), Try(41, 112)), ""),
        ((Try(1, 40), Try(1, 112)), ""),
        ((Try(1, 40, stored=30), Try(31, 60, stored=50), Try(56, 112)), ""),
        ((Try(1, 40, stored=30), Try(30, 112)), "step 30, with the checkpoint of step 30 and 40 steps done"),
        ((Try(1, 40, stored=30), Try(42, 112)), "step 42, with the checkpoint of step 30 and 40 steps done"),
        ((Try(1, 40), Try(2, 112)), "step 2, with no checkpoint and 40 steps done"),
        ((Try(1, 40, stored=30), Try(0, 0)), "step 0, with the checkpoint of step 30 and 40 steps done"),
    ],
)
def test_the_next_launcher_begins_with_the_newest_checkpoint(tries: tuple[Try, ...], words: str) -> None:
    troubles = judge(replace(GOOD, tries=tries), [kill(3.0, kind=FaultKind.LOSE_LAUNCHER)], EXPECTED).troubles
    assert troubles == ([f"the next launcher began with {words}"] if words else [])
