"""The time that is left: near the truth after three resizes, and never nonsense."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_runtime.launcher.record.paces import LEAST_SPREAD, Measured
from elastic_runtime.launcher.record.time_left import (
    HORIZON,
    REPLACING,
    Situation,
    TimeLeft,
    pace_of,
    stages,
    time_left,
)
from tests.unit.runtime.time_left_bench import Change, Script, at_half_time, simulated

THREE_RESIZES = {
    "grows": (Change(0, 1, 1), Change(200, 2, 2), Change(400, 3, 3), Change(600, 4, 4)),
    "shrinks and grows": (Change(0, 4, 4), Change(150, 3, 3), Change(300, 2, 2), Change(450, 3, 3)),
    "to a size that is new a minute before": (
        Change(0, 2, 2),
        Change(200, 3, 3),
        Change(500, 2, 2),
        Change(1050, 5, 5),
    ),
    "losses with replacements": (
        *(Change(0, 4, 4), Change(100, 3, 4), Change(160, 4, 4), Change(700, 3, 4), Change(760, 4, 4)),
        *(Change(1200, 3, 4), Change(1260, 4, 4)),
    ),
    "notices with replacements": (
        *(Change(0, 4, 4), Change(300, 4, 4, 30), Change(330, 3, 4), Change(400, 4, 4)),
        *(Change(1000, 4, 4, 60), Change(1060, 3, 4), Change(1120, 4, 4)),
    ),
    "waits for capacity": (Change(0, 4, 4), Change(200, 0, 4), Change(500, 4, 4), Change(700, 3, 3)),
    "waits for ranks that never come": (Change(0, 2, 2), Change(200, 3, 3), Change(400, 2, 2), Change(500, 2, 4)),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("changes", THREE_RESIZES.values(), ids=list(THREE_RESIZES))
def test_at_half_time_the_estimate_is_within_15_percent(changes: tuple[Change, ...], seed: int) -> None:
    left, told = at_half_time(Script(changes), seed)
    assert told.seconds == pytest.approx(left, rel=0.15)
    assert told.least is not None
    assert told.most is not None
    assert told.least <= left <= told.most


def test_without_resizes_the_interval_holds_the_end_nearly_always_and_narrows() -> None:
    looks, end = simulated(Script((Change(0, 2, 2),), steps=3000), 3)
    told = [(end - look.at, look.progress) for look in looks if look.progress.seconds is not None]
    held = [p.least <= left + 0.1 and left <= p.most + 0.1 for left, p in told if p.least is not None and p.most]
    assert sum(held) >= 0.9 * len(held)
    _, first = told[0]
    _, middle = told[len(told) // 2]
    assert first.least is not None
    assert middle.least is not None
    assert middle.most is not None
    assert first.most is not None
    assert (middle.most - middle.least) / middle.percent < (first.most - first.least) / first.percent


def measured(ranks: int, pace: float, seconds: float = 600.0, variance: float = 0.01) -> Measured:
    return Measured(ranks, seconds / pace, seconds, variance, 20)


def estimate(known: list[Measured], now: Situation) -> TimeLeft:
    found = time_left(known, now)
    assert isinstance(found, TimeLeft)
    return found


class TestSizesToCome:
    def test_what_trains_goes_on(self) -> None:
        found = estimate([measured(2, 0.5)], Situation(left=1000, ranks=2, wanted=2))
        assert found.seconds == pytest.approx(500)
        assert found.basis == "measured with 2 ranks"

    def test_a_notice_counts_from_its_deadline(self) -> None:
        known = [measured(1, 1.0), measured(2, 0.5)]
        found = estimate(known, Situation(left=1000, ranks=2, wanted=2, leaving=((100.0, 1),)))
        assert found.seconds == pytest.approx(500 + REPLACING / 2, rel=0.01)
        assert found.least <= 500
        assert found.basis == "measured with 2, 1 ranks; 1 rank leaving"

    def test_a_shortage_lasts_as_long_again(self) -> None:
        known = [measured(1, 1.0), measured(2, 0.5)]
        found = estimate(known, Situation(left=1000, ranks=1, wanted=2, short=200.0))
        assert found.seconds == pytest.approx(200 + 800 / 2, rel=0.01)
        assert found.most == pytest.approx(1000 * (1 + LEAST_SPREAD), rel=0.01)

    def test_sizes_of_the_plan_train_from_their_time_on(self) -> None:
        known = [measured(1, 1.0), measured(2, 0.5), measured(4, 0.25)]
        planned = ((100.0, 4), (150.0, 1), (400.0, 2))
        found = estimate(known, Situation(left=1000, ranks=2, wanted=2, planned=planned))
        assert found.seconds == pytest.approx(400 + (1000 - 200 - 200 - 250) / 2, rel=0.02)
        assert stages(Situation(left=1, ranks=1, wanted=2, planned=planned), 120.0) == [
            *((0.0, 1), (100.0, 1), (120.0, 4), (150.0, 1), (400.0, 2)),
        ]

    def test_below_the_minimum_nobody_trains(self) -> None:
        found = estimate([measured(4, 0.25)], Situation(left=1000, ranks=0, wanted=4, minimum=4, short=50.0))
        assert found.seconds == pytest.approx(300)
        known = [measured(4, 0.25)]
        found = estimate(known, Situation(left=1000, ranks=4, wanted=4, minimum=4, leaving=((100.0, 1),)))
        assert found.seconds == pytest.approx(250 + REPLACING)

    def test_ranks_that_are_too_many_do_not_count(self) -> None:
        assert stages(Situation(left=1, ranks=4, wanted=2, leaving=((30.0, 1), (30.0, 1))), 5.0)[-1][1] == 2

    def test_a_thousand_notices_are_few_stages(self) -> None:
        leaving = tuple((float(second), 1) for second in range(1000))
        found = stages(Situation(left=1, ranks=1000, wanted=1000, leaving=leaving), 5.0)
        assert len(found) < 15
        assert found[-2][1] == 0

    def test_a_step_of_minutes_counts_while_it_is_made(self) -> None:
        known = [Measured(2, 10, 3000.0, 100.0, 10)]
        begun, half = (Situation(left=10, ranks=2, wanted=2, since_step=since) for since in (0.0, 150.0))
        assert estimate(known, half).seconds == pytest.approx(estimate(known, begun).seconds - 150)


class TestPaceOfSizes:
    def test_that_were_not_measured_follow_from_one_in_an_interval_from_no_gain_to_all(self) -> None:
        found = pace_of([measured(2, 1.0, variance=0.0)], 4, 1000)
        assert found.point == pytest.approx(0.75)
        assert found.low == pytest.approx(0.5 * (1 - LEAST_SPREAD))
        assert found.high == pytest.approx(1 + LEAST_SPREAD)

    def test_that_were_not_measured_follow_from_two_by_their_law(self) -> None:
        known = [measured(1, 0.1 + 0.8), measured(4, 0.1 + 0.2)]
        assert pace_of(known, 2, 1000).point == pytest.approx(0.5)

    @pytest.mark.parametrize("larger", [0.9, 1.3])
    def test_that_gain_nothing_by_more_ranks_are_no_faster(self, larger: float) -> None:
        found = pace_of([measured(1, 0.9), measured(2, larger)], 8, 1000)
        assert found.point >= 0.9

    def test_that_have_just_begun_are_told_as_inferred(self) -> None:
        known = [measured(2, 0.5), measured(3, 0.4, seconds=3.0)]
        assert estimate(known, Situation(left=100, ranks=3, wanted=3)).basis == "inferred for 3 ranks from 2 ranks"

    def test_are_their_own_once_they_have_trained(self) -> None:
        known = [measured(1, 0.9), measured(2, 0.5), measured(4, 5.0)]
        assert pace_of(known, 4, 1000).point == pytest.approx(5.0, rel=0.05)


paces = st.floats(1e-4, 1e5)
sizes = st.integers(1, 2000)
of_a_size = st.builds(Measured, sizes, st.floats(1, 1e7), st.floats(1, 1e7), st.floats(0, 1e6), st.integers(1, 32))
several = st.lists(of_a_size, min_size=1, max_size=6, unique_by=lambda each: each.ranks)
plans = st.lists(st.tuples(st.floats(0, 1e6), sizes), max_size=40).map(lambda each: tuple(sorted(each)))
notices = st.lists(st.tuples(st.floats(-10, 1e5), st.integers(0, 50)), max_size=15).map(tuple)
seconds = st.floats(0, 1e6)
situations = st.builds(
    Situation, st.integers(0, 2**53), st.integers(0, 2000), sizes, plans, sizes, seconds, notices, seconds, seconds
)


@given(several, situations)
@example([Measured(1, 2.0**53, 1.0, 0.0, 1)], Situation(2**53, 0, 1))
def test_the_interval_is_around_the_estimate_and_nothing_is_negative(known: list[Measured], now: Situation) -> None:
    found = time_left(known, now)
    if isinstance(found, str):
        assert "years" in found
        return
    assert 0 <= found.least <= found.seconds <= found.most <= HORIZON
    assert now.left or not found.most


@given(several, situations, st.integers(1, 1000))
@example([Measured(1, 1.0, 1.0, 0.0, 1)], Situation(1, 1, 2, minimum=2, since_step=1.0), 1)
def test_more_steps_never_take_less_time(known: list[Measured], now: Situation, more: int) -> None:
    less, longer = time_left(known, now), time_left(known, replace(now, left=now.left + more))
    if isinstance(longer, TimeLeft):
        assert isinstance(less, TimeLeft)
        assert less.seconds <= longer.seconds * (1 + 1e-9)


@given(several, sizes, st.floats(1, 1e15))
def test_a_pace_lies_within_its_interval(known: list[Measured], ranks: int, steps: float) -> None:
    found = pace_of(known, ranks, steps)
    assert 0 < found.low <= found.point <= found.high
    assert math.isfinite(found.high)


@pytest.mark.parametrize(
    ("known", "now", "why"),
    [
        ([], Situation(5, 2, 2), "no pace is measured yet"),
        ([measured(2, 1.0)], Situation(5, 0, 0), "no ranks are wanted"),
        ([measured(2, 1.0)], Situation(2**53, 2, 2), "more than 10 years"),
    ],
)
def test_says_why_there_is_no_estimate(known: list[Measured], now: Situation, why: str) -> None:
    found = time_left(known, now)
    assert isinstance(found, str)
    assert why in found
