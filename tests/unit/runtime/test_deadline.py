"""How many workers a run gets for its deadline and its budget: the decision alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.decision.deadline import (
    DeadlineDecision,
    DeadlineFacts,
    DeadlineSettings,
    SizeEstimate,
    Trouble,
    compared,
    decide,
    over_budget,
)
from elastic_runtime.run.deadline import DeadlineSpec, DeadlineStatus, deadline_words
from elastic_runtime.run.spec import PlanWindow, RunSpec, SizePlan, WorkersSpec

NOW = datetime(2026, 3, 2, 21, tzinfo=UTC)
BOUNDS = WorkersSpec(1, 2, 8)
HOUR = 3600.0


def sizes(left: float, shared: float = 0.1, divided: float = 0.9, spread: float = 0.05) -> tuple[SizeEstimate, ...]:
    """Estimates for steps of ``shared + divided / n`` seconds, each with an interval."""
    paces = ((workers, shared + divided / workers) for workers in range(BOUNDS.minimum, BOUNDS.maximum + 1))
    return tuple(
        SizeEstimate(workers, left * pace * 0.95, left * pace, left * pace * (1 + spread)) for workers, pace in paces
    )


def facts(estimates: Sequence[SizeEstimate], wanted: int = 2, **more: object) -> DeadlineFacts:
    return replace(DeadlineFacts(wanted, 0.0, tuple(estimates), 600.0), **more)  # type: ignore[arg-type]  # its fields


def settings(hours: float | None = None, budget: float | None = None, price: float | None = None) -> DeadlineSettings:
    by = None if hours is None else NOW + timedelta(hours=hours)
    return DeadlineSettings(DeadlineSpec(by, budget, price, "Europe/Berlin"), BOUNDS)


def chosen(of: DeadlineFacts, by: DeadlineSettings, now: datetime = NOW) -> DeadlineDecision:
    return decide(of, by, now)


class TestByATime:
    @pytest.mark.parametrize(
        ("hours", "wanted", "workers"),
        [
            # An hour of steps for 1 worker: 0.55 h for 2, 0.4 h for 3, 0.325 h for 4, 0.2125 h for 8.
            (0.42, 2, 4),
            (0.7, 2, 3),  # 2 would be in time, but not by the estimate's lower bound with the reserve
            (0.75, 2, 2),
            (0.75, 3, 3),  # 2 would be in time, without the margin that a size is given up for
            (9.0, 1, 1),
            (9.0, 8, 3),  # which costs 1.2 times as much as 1
            (0.1, 4, 8),
            (0.1, 2, 4),  # no more than twice as many at a look
        ],
    )
    def test_the_fewest_that_are_in_time_by_the_lower_bound(self, hours: float, wanted: int, workers: int) -> None:
        assert chosen(facts(sizes(3600), wanted), settings(hours)).workers == workers

    @pytest.mark.parametrize(("wanted", "workers"), [(1, 2), (4, 8), (8, 8)])
    def test_workers_that_cost_nothing_are_taken_though_fewer_are_in_time(self, wanted: int, workers: int) -> None:
        assert chosen(facts(sizes(3600, shared=0.0, divided=1.0), wanted), settings(9.0)).workers == workers

    def test_a_change_says_why(self) -> None:
        decision = chosen(facts(sizes(3600)), settings(0.7, price=0.5))
        why = "with 3 workers, it ends at 22:24 at this pace and costs 0.61 $; with 2 workers, it ends at 22:33"
        assert decision.why == f"{why} at this pace and costs 0.56 $"
        assert decision.trouble == frozenset()

    def test_a_deadline_that_cannot_be_met_is_said(self) -> None:
        decision = chosen(facts(sizes(3600 * 8)), settings(1.0))
        assert (decision.workers, decision.trouble) == (4, {Trouble.LATE})
        assert decision.words == "with 8 workers, it ends at 23:42 at this pace; that is after 23:00"

    def test_trouble_that_only_a_wide_interval_makes_is_not_said(self) -> None:
        inferred = [replace(each, least=each.seconds / 3) for each in sizes(3600 * 8)]
        assert chosen(facts(inferred), settings(1.0)).trouble == frozenset()
        assert chosen(facts(inferred), settings(0.5)).trouble == {Trouble.LATE}

    def test_what_is_said_is_over_once_there_is_room(self) -> None:
        late = facts(sizes(3600), 8, trouble=frozenset({Trouble.LATE}))
        assert chosen(late, settings(0.22)).trouble == {Trouble.LATE}
        assert chosen(late, settings(0.26)).trouble == frozenset()

    def test_one_that_has_passed_is_said_and_the_fastest_size_trains(self) -> None:
        decision = chosen(facts(sizes(3600)), settings(-0.5))
        assert (decision.workers, decision.trouble) == (4, {Trouble.PASSED})
        assert decision.words.endswith("; the deadline 21:30 has passed")

    def test_a_size_that_is_asked_for_is_kept_for_a_while(self) -> None:
        held = facts(sizes(3600), held_until=NOW + timedelta(minutes=30))
        decision = chosen(held, settings(0.42))
        assert (decision.workers, decision.trouble) == (2, {Trouble.LATE})
        assert decision.words.endswith("that is after 22:25, and this size was asked for")
        assert chosen(held, settings(1.0), NOW + timedelta(minutes=30)).workers == 4

    def test_no_more_are_asked_for_while_some_are_missing(self) -> None:
        short = facts(sizes(3600), 4, missing=True)
        assert chosen(short, settings(0.3)).workers == 4
        assert chosen(short, settings(9.0)).workers == 3

    def test_more_workers_that_do_not_help_are_not_asked_for(self) -> None:
        slower = tuple(SizeEstimate(each, 3600.0, 3600.0 + each, 4000.0 + each) for each in range(1, 9))
        assert chosen(facts(slower), settings(0.5)).workers == 2


class TestByABudget:
    def test_a_worker_more_only_while_it_pays(self) -> None:
        # c(n) = 0.1 + 0.9 n workers' hours: all 8 cost 1.7 $ at 1 $. A worker more has to pay for itself.
        workers = [chosen(facts(sizes(3600), 4), settings(None, budget, 1.0)).workers for budget in (1.2, 2, 3, 20)]
        assert workers == sorted(workers)
        assert workers[0] < 4
        assert workers[-1] == 8
        assert len(set(workers)) > 2

    def test_what_costs_more_whatever_the_size_is_said(self) -> None:
        decision = chosen(facts(sizes(3600 * 40)), settings(None, 40.0, 1.15))
        assert (decision.workers, decision.trouble) == (1, {Trouble.COSTLY})
        words = "and costs 46.01 $; that is more than the budget of 40.00 $, at which it will be stopped"
        assert decision.words.endswith(words)

    def test_the_budget_wins_over_the_time(self) -> None:
        # 3 workers are in time and cost 1.23 $.
        decision = chosen(facts(sizes(3600)), settings(0.42, 1.17, 1.0))
        assert (decision.workers, decision.trouble) == (2, {Trouble.LATE})
        assert decision.words == (
            "with 2 workers, it ends at 22:33 at this pace and costs 1.12 $; that is after 22:25; "
            "in time it takes 3 workers and 1.23 $"
        )

    def test_the_run_is_stopped_before_it_costs_more(self) -> None:
        deadline = settings(None, 10.0, 2.0).deadline
        assert over_budget(5 * HOUR - 61, 2, deadline) is None
        words = over_budget(5 * HOUR - 60, 2, deadline)
        assert words is not None
        assert words.startswith("the budget of 10.00 $ is reached: 9.97 $ are spent (4.98 worker hours at 2 $)")
        assert over_budget(1e9, 2, settings(1.0, price=2.0).deadline) is None


class TestWithoutEstimates:
    def test_the_size_stays_and_an_unknown_number_of_steps_is_said_after_a_minute(self) -> None:
        unknown = facts((), 3, steps_known=False, measured=59.0)
        assert chosen(unknown, settings(1.0)) == DeadlineDecision(3)
        decision = chosen(replace(unknown, measured=60.0), settings(1.0))
        assert (decision.workers, decision.trouble) == (3, {Trouble.UNKNOWN})
        assert "report(step, of=...)" in decision.words
        assert chosen(unknown, settings(-1.0)).trouble == {Trouble.PASSED}

    def test_no_pace_yet_is_no_trouble(self) -> None:
        assert chosen(facts((), 3, measured=0.0), settings(1.0)) == DeadlineDecision(3)


paces = st.tuples(st.floats(0.0, 1.0), st.floats(0.001, 10.0), st.floats(0.0, 1.0))
deadlines = st.builds(
    settings,
    st.floats(-1.0, 20.0),
    st.none() | st.floats(0.01, 100.0),
    st.floats(0.01, 10.0),
)
budgets = st.builds(settings, st.none(), st.floats(0.01, 100.0), st.floats(0.01, 10.0))
wanted = st.integers(BOUNDS.minimum, BOUNDS.maximum)


@given(paces, st.floats(1.0, 1e5), deadlines | budgets, wanted, st.floats(0, 1e6), st.sets(wanted, max_size=6))
def test_is_always_a_size_that_can_be_had(
    pace: tuple[float, float, float], left: float, by: DeadlineSettings, now: int, used: float, refused: set[int]
) -> None:
    there = [each for each in sizes(left, *pace) if each.workers == now or each.workers not in refused]
    decision = chosen(facts(there, now, worker_seconds=used), by)
    assert decision.workers in {each.workers for each in there}
    assert bool(decision.why) == (decision.workers != now)
    assert len(decision.words) <= 300


@given(paces, st.floats(1.0, 1e5), st.tuples(st.floats(-1.0, 20.0), st.floats(-1.0, 20.0)), wanted)
def test_less_time_never_means_fewer_workers(
    pace: tuple[float, float, float], left: float, hours: tuple[float, float], now: int
) -> None:
    less, more = sorted(hours)
    there = facts(sizes(left, *pace), now)
    assert chosen(there, settings(less)).workers >= chosen(there, settings(more)).workers


@given(paces, st.floats(1.0, 1e5), st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 100.0)), wanted)
def test_less_money_never_means_more_workers(
    pace: tuple[float, float, float], left: float, dollars: tuple[float, float], now: int
) -> None:
    less, more = sorted(dollars)
    there = facts(sizes(left, *pace), now)
    for hours in (None, 1.0):
        poor, rich = (chosen(there, settings(hours, budget, 0.5)).workers for budget in (less, more))
        assert poor <= rich


@given(paces, st.floats(600.0, 1e5), deadlines | budgets, wanted, st.integers(0, 999))
def test_noise_of_3_percent_does_not_change_the_size_to_and_fro(
    pace: tuple[float, float, float], left: float, by: DeadlineSettings, now: int, seed: int
) -> None:
    random, seen = Random(seed), [now]
    for _ in range(30):
        noisy = [
            replace(each, least=each.least * factor, seconds=each.seconds * factor, most=each.most * factor)
            for each, factor in ((each, random.uniform(0.97, 1.03)) for each in sizes(left, *pace))
        ]
        seen.append(chosen(facts(noisy, seen[-1]), by).workers)
    left_behind = [before for before, after in pairwise(seen) if before != after]
    assert len(left_behind) == len({*left_behind, seen[-1]} - {seen[-1]}), seen


@pytest.mark.parametrize(
    ("bounds", "now", "found"),
    [((1, 4), 2, [1, 2, 3, 4]), ((3, 3), 3, [3]), ((1, 4), 0, [0, 1, 2, 3, 4])],
)
def test_all_sizes_are_compared(bounds: tuple[int, int], now: int, found: list[int]) -> None:
    least, most = bounds
    assert compared(WorkersSpec(least, least, most), now) == found


def test_of_very_many_sizes_some_are_compared() -> None:
    found = compared(WorkersSpec(3, 3, 5000), 77)
    assert len(found) <= 103
    assert {3, 77, 5000} <= set(found)


class TestWhatIsNoDeadline:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({}, "deadline"),
            ({"price": 1.0}, "deadline"),
            ({"by": datetime(2026, 1, 1)}, "deadline.by"),  # noqa: DTZ001  # that is what is wrong with it
            ({"budget": 1.0}, "deadline.budget"),
            ({"budget": 0.0, "price": 1.0}, "deadline.budget"),
            ({"budget": float("nan"), "price": 1.0}, "deadline.budget"),
            ({"budget": 1.0, "price": -1.0}, "deadline.price"),
            ({"budget": 1.0, "price": float("inf")}, "deadline.price"),
        ],
    )
    def test_settings(self, settings: dict[str, object], field: str) -> None:
        with pytest.raises(InvalidSettings) as refused:
            DeadlineSpec(**settings)  # type: ignore[arg-type]  # as a document may have them
        assert refused.value.field == field

    def test_beside_a_plan(self) -> None:
        plan = SizePlan("UTC", 2, (PlanWindow(8, "22:00", "06:00"),))
        with pytest.raises(InvalidSettings, match="size_plan"):
            RunSpec("run", "1", ("python",), BOUNDS, size_plan=plan, deadline=DeadlineSpec(NOW))


def test_a_zone_that_is_not_known_here_is_utc() -> None:
    late = DeadlineSettings(DeadlineSpec(NOW, time_zone="Mars/Olympus"), BOUNDS)
    assert "the deadline 21:00 has passed" in chosen(facts(sizes(60)), late).words


def test_words_for_a_line_of_text() -> None:
    status = DeadlineStatus(NOW, 40.0, 12.4, "it is late", NOW + timedelta(hours=1))
    words = "by 2026-03-02 21:00 UTC; 12.40 $ spent, of 40.00 $; size kept until 22:00 UTC; it is late"
    assert deadline_words(status) == words
    assert deadline_words(DeadlineStatus(budget=2.0, spent=1.0)) == "1.00 $ spent, of 2.00 $"
