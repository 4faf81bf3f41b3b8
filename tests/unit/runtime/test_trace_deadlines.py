"""Deadlines in simulated markets: the plan that knows the market, and what the launcher's policy costs against it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from benchmarks.traces.deadlines import MOST, Steered, as_measures, deadline_lines, steer
from benchmarks.traces.omniscient import cheapest
from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.prices.book import choose_price, read_prices
from elastic_runtime.rehearsal.rehearse import sizes_over_time
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.steering import BEGIN
from elastic_runtime.rehearsal.trace_files import SHIPPED, read_trace
from elastic_runtime.run.deadline import DeadlineSpec
from tests.unit.runtime.trace_bench import COSTS, ELASTIC, job, run, trace

HOUR = 3600.0


class TestThePlanThatKnowsTheMarket:
    def test_few_workers_for_long_are_cheaper_than_many(self) -> None:
        market, work = trace(10 * HOUR, *[(0, 10 * HOUR)] * 4), job(1, 4, scaling=Scaling(0.75), steps=900)
        dollars = [cheapest(market, work, hours * HOUR, 2.0) for hours in (1, 0.75, 0.6, 0.45)]
        assert dollars[0] == pytest.approx(2.0)  # 900 steps of 4 s: an hour of one worker
        assert dollars == sorted(dollars, key=lambda each: each or 0.0)
        assert dollars[-1] == pytest.approx(0.45 * 4 * 2.0, rel=0.02)
        assert cheapest(market, work, 0.4 * HOUR, 2.0) is None

    def test_no_sizes_over_time_are_cheaper(self) -> None:
        market = trace(3 * HOUR, (0, 3 * HOUR), (0, HOUR), (0.5 * HOUR, 3 * HOUR))
        work = job(1, 3, scaling=Scaling(0.8), steps=2250)
        least = cheapest(market, work, 3 * HOUR, 1.0)
        assert least is not None
        plans = product(range(3), range(4), range(3))  # sizes in the parts with 2, 3 and 2 machines
        hours = (0.5, 0.5, 2.0)
        costs = [
            sum(part * workers for part, workers in zip(hours, plan, strict=True))
            for plan in plans
            if sum(part * work.scaling.rate(workers) for part, workers in zip(hours, plan, strict=True)) >= 2.5
        ]
        assert least <= min(costs)

    def test_cheap_hours_come_first(self) -> None:
        priced = replace(trace(2 * HOUR, (0, 2 * HOUR)), prices=((0.0, 3), (HOUR, 1)))  # type: ignore[arg-type]  # whole
        assert cheapest(priced, job(1, 1, steps=900), 2 * HOUR, 9.0) == pytest.approx(1.0)
        assert cheapest(priced, job(1, 1, steps=1350), 2 * HOUR, 9.0) == pytest.approx(2.5)


class TestASimulatedRun:
    MARKET = trace(8 * HOUR, *[(0, 8 * HOUR)] * 8)

    def test_grows_as_far_as_it_has_to_and_pays_for_few_where_many_are_dear(self) -> None:
        work = job(1, 8, scaling=Scaling(0.75), steps=5400, start=1)  # 6 hours for one worker
        by = DeadlineSpec(by=BEGIN + timedelta(hours=3))
        outcome = run(self.MARKET, ELASTIC, replace(work, deadline=by))
        assert (outcome.finished, outcome.failure) == (True, None)
        assert 2.0 * HOUR < outcome.seconds < 3.0 * HOUR
        sizes = sizes_over_time(outcome)
        assert 2.5 < max(sizes) < 8

    def test_takes_all_that_cost_nothing(self) -> None:
        work = job(1, 8, steps=5400, start=2, deadline=DeadlineSpec(by=BEGIN + timedelta(hours=3)))
        outcome = run(self.MARKET, ELASTIC, work)
        assert outcome.seconds < HOUR
        assert max(ranks for _, _, ranks in outcome.history) == 8

    def test_gives_workers_up_and_takes_them_again(self) -> None:
        # The run has too many workers, gives some up, and needs all again once the market had none for 3 hours.
        market = trace(9 * HOUR, *[(0, 2 * HOUR)] * 8, *[(5 * HOUR, 9 * HOUR)] * 8)
        work = job(1, 8, scaling=Scaling(0.75), steps=9000, start=8)
        outcome = run(market, ELASTIC, replace(work, deadline=DeadlineSpec(by=BEGIN + timedelta(hours=7))))
        before = [ranks for at, _, ranks in outcome.history if ranks and HOUR < at < 2 * HOUR]
        after = [ranks for at, _, ranks in outcome.history if at > 5 * HOUR]
        assert 0 < max(before) < max(after) == 8
        assert outcome.finished
        assert outcome.seconds < 7 * HOUR

    def test_is_stopped_at_its_budget(self) -> None:
        budget = DeadlineSpec(budget=1.0, price=1.0)
        outcome = run(self.MARKET, ELASTIC, job(1, 8, steps=5400, start=1, deadline=budget))
        assert (outcome.finished, outcome.failure) == (False, FailureKind.BUDGET)
        assert HOUR * 0.9 < outcome.seconds <= HOUR + COSTS.machine_start + COSTS.worker_start

    def test_without_steps_there_is_no_deadline(self) -> None:
        with pytest.raises(InvalidSettings, match="number of steps"):
            job(1, 8, deadline=DeadlineSpec(by=BEGIN))


@pytest.mark.parametrize("name", ["calm", "fleet_loss"])
def test_the_policy_is_in_time_and_costs_little_more_than_the_plan(name: str) -> None:
    price = choose_price(read_prices(), "aws/g4dn.xlarge")
    runs = list(steer(read_trace(SHIPPED / f"{name}.csv"), ELASTIC, price, starts=(0.3,), times=(1.25, 2.0)))
    assert [run for run in runs if run.late > 0] == []
    (measure,) = as_measures(runs).values()
    assert (measure["met"], measure["rounds"]) == (True, 4)
    assert all(1.0 <= run.ratio < MOST + 0.1 for run in runs)


def test_a_deadline_that_is_missed_is_shown() -> None:
    runs = [Steered("made", 1.0, 1.5, 60.0, 2.2, 2.0), Steered("made", 1.0, 2.0, -60.0, 2.0, 2.0)]
    assert as_measures(runs)["deadlines_made"]["met"] is False
    assert "| made | 1.0 | 2 | 1 | 1.050 | 1.100 |" in deadline_lines(runs)
    assert deadline_lines(runs)[-1] == "* missed: made, 1.5 times the fastest run, by 60 s"
