"""Rehearsals of a task: the same figures each time, from a market that can be followed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.rehearsal.alternatives import Alternative, Sizes, better, candidates
from elastic_runtime.rehearsal.policy import Job, Policy
from elastic_runtime.rehearsal.rehearse import (
    Figures,
    Plan,
    Run,
    Spread,
    Tariff,
    figures,
    rehearse,
    sizes_over_time,
    spot_cost,
    spread,
)
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.speed import LEAST_EFFICIENCY, fitted, measured, speed_of
from elastic_runtime.rehearsal.trace import DAY, HOUR, Notices, Trace
from elastic_runtime.run.spec import RecoveryMode
from elastic_runtime.run.status import Phase, Series, Status, World
from tests.examples import costly
from tests.unit.runtime.trace_bench import COSTS, ELASTIC, UNANNOUNCED, notices, policies, trace, traces, with_costs

TARIFF = Tariff(on_demand=Decimal(2), spot=Decimal("0.5"))
START = COSTS.machine_start + COSTS.worker_start + COSTS.session_start
READY = COSTS.machine_start + COSTS.worker_start
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NO_CHECKPOINTS = with_costs(ELASTIC, checkpoint_every=1e9)
STEADY = trace(HOUR, (0, HOUR), (0, HOUR))


def plan(policy: Policy = NO_CHECKPOINTS, announced: Notices = UNANNOUNCED, **more: object) -> Plan:
    job = Job(1, 2, 2, step_work=4.0, steps=500, max_wait=600.0, start_timeout=600.0)
    return Plan(replace(job, **more), policy, announced)  # type: ignore[arg-type]  # each test names fields of the right type


def one(given_plan: Plan, market: Trace, limit: float = DAY) -> Run:
    (run,) = rehearse(given_plan, [market], TARIFF, runs=1, limit=limit)
    return run


class TestRun:
    def test_ends_with_its_last_step(self) -> None:
        run = one(plan(), STEADY)
        assert run.seconds == pytest.approx(START + 500 * 4 / 2) == plan().undisturbed
        assert (run.outcome.steps, run.outcome.losses, run.outcome.end) == (500, 0, None)

    def test_pays_workers_from_when_they_can_train(self) -> None:
        run = one(plan(), STEADY)
        paid = (run.seconds - READY) * 2 / HOUR
        assert run.cost == pytest.approx(paid * 0.5)
        assert plan().on_demand(TARIFF) == pytest.approx(paid * 2)

    def test_begins_in_the_midst_of_a_market_and_goes_on_over_its_end(self) -> None:
        market = trace(HOUR, (0, HOUR), (0, 1800))  # two machines in the first half of each hour, one in the second
        first, second = rehearse(plan(), [market], TARIFF, runs=2, limit=DAY)
        assert (first.start, second.start) == (0.0, 1800.0)
        assert first.seconds == pytest.approx(START + 1000)
        # 1758 s with one worker are 439 steps and a half; the rest with both, once the second has come.
        assert 1800 < second.seconds < 1800 + (2000 - 1758) / 2 + START
        assert (first.outcome.losses, second.outcome.losses) == (0, 0)

    def test_that_is_left_without_machines_ends_by_its_own_limit(self) -> None:
        market = trace(HOUR, (0, 600), (0, 600), (3000, HOUR))
        run = one(plan(), market)
        assert run.outcome.failure is FailureKind.MAX_WAIT_EXCEEDED
        assert run.outcome.seconds == pytest.approx(1200, abs=5)
        assert math.isinf(run.seconds)
        assert run.cost == pytest.approx(2 * (600 - READY) / HOUR * 0.5)
        assert one(plan(ELASTIC, max_wait=HOUR), market).outcome.finished

    def test_that_never_gets_a_machine_ends_by_its_start_timeout(self) -> None:
        market = trace(HOUR, (0, 10), (3500, HOUR))
        run = rehearse(plan(), [market], TARIFF, runs=2, limit=DAY)[1]
        assert run.outcome.failure is FailureKind.START_TIMEOUT
        assert run.outcome.seconds == pytest.approx(600, abs=2)
        assert run.cost == 0

    def test_without_a_store_starts_over_after_a_loss_of_all(self) -> None:
        market = trace(4 * HOUR, (0, 600), (0, 600), (700, 4 * HOUR), (700, 4 * HOUR))
        kept, lost = (one(plan(ELASTIC, durable=durable), market).outcome for durable in (True, False))
        assert kept.lost_steps < 40 < lost.lost_steps
        assert lost.checkpoints == 0 < kept.checkpoints

    def test_that_takes_longer_than_the_limit_has_not_finished(self) -> None:
        run = one(plan(), STEADY, limit=600)
        assert (run.outcome.finished, run.outcome.end) == (False, None)
        assert figures([run], 600).ends == {"not done after 0.00694444 days": 1}

    @costly()
    @given(traces(), policies, notices, st.integers(1, 4), st.integers(1, 4))
    def test_of_any_market_is_the_same_each_time_and_pays_no_more_than_for_its_machines(
        self, market: Trace, policy: Policy, announced: Notices, least: int, more: int
    ) -> None:
        wanted = plan(policy, announced).with_sizes(least, least + more)
        wanted = replace(wanted, job=replace(wanted.job, max_wait=HOUR))
        runs = rehearse(wanted, [market], TARIFF, runs=2, limit=6 * HOUR)
        assert runs == rehearse(wanted, [market], TARIFF, runs=2, limit=6 * HOUR)
        for run in runs:
            assert 0 <= run.cost <= run.outcome.seconds * market.peak * 0.5 / HOUR + 1e-9
            assert run.outcome.steps == 500 if run.outcome.finished else run.outcome.steps < 500
            if run.outcome.finished:
                assert run.seconds >= wanted.undisturbed - 1e-6
            assert all(0 <= size <= least + more + 1 for size in sizes_over_time(run.outcome))


class TestFigures:
    def test_are_of_all_runs(self) -> None:
        market = trace(HOUR, (0, HOUR), (0, 1800))
        summed = figures(rehearse(plan(), [market, STEADY], TARIFF, runs=2, limit=DAY), DAY)
        assert (summed.runs, summed.finished, summed.ends) == (4, 4, {})
        assert summed.seconds.low == summed.seconds.median == pytest.approx(START + 1000)
        assert summed.seconds.high == pytest.approx(1931.5)
        # Three with both workers all the time; one with the second from READY after its half hour on.
        seconds = 3 * 2 * (START + 1000 - READY) + (1931.5 - READY) + (1931.5 - 1800 - READY)
        assert summed.mean_cost == pytest.approx(seconds / HOUR * 0.5 / 4)
        assert summed.losses == summed.lost_steps == 0
        assert summed.sizes[-1] == pytest.approx(2.0, abs=0.3)

    def test_runs_that_do_not_finish_are_the_latest(self) -> None:
        late = [one(plan(), STEADY), one(plan(), trace(HOUR, (0, 600), (0, 600), (3000, HOUR)))]
        summed = figures(late, DAY)
        assert summed.seconds == Spread(late[0].seconds, late[0].seconds, None)
        assert summed.ends == {"max_wait_exceeded": 1}
        assert summed.mean_cost == late[0].cost

    def test_of_none_that_finishes(self) -> None:
        summed = figures([one(plan(), STEADY, limit=60)], 60)
        assert (summed.seconds, summed.mean_cost, summed.losses) == (Spread(None, None, None), None, None)
        assert summed.sizes == ()

    @given(st.lists(st.floats(0, 1e6), min_size=1))
    def test_a_spread_has_values_in_order(self, values: list[float]) -> None:
        found = spread(values)
        assert found.low is not None
        assert found.median is not None
        assert found.high is not None
        assert found.low <= found.median <= found.high
        assert {found.low, found.median, found.high} <= set(values)
        assert sum(each <= found.high for each in values) >= 0.9 * len(values)

    def test_cost_follows_a_markets_own_prices(self) -> None:
        market = replace(STEADY, prices=((0.0, Decimal(1)), (540.0, Decimal(3))))
        outcome = one(plan(), market).outcome
        # Two workers from READY on: to 540 s at one dollar, then at three.
        expected = 2 * ((540 - READY) * 1 + (outcome.seconds - 540) * 3) / HOUR
        assert spot_cost(outcome, market, TARIFF) == pytest.approx(expected)


def made(median: float | None, high: float | None, cost: float | None, finished: int = 10) -> Figures:
    return Figures(10, finished, {}, Spread(median, median, high), Spread(cost, cost, cost), cost, 0.0, 0.0, 0.0, ())


OWN = made(100, 120, 10)


class TestAlternatives:
    def test_are_around_the_own_sizes_and_within_the_market(self) -> None:
        tried = candidates(Sizes(2, 4), 8, 6, fixed=False)
        assert Sizes(2, 4) not in tried
        assert {each.wanted for each in tried} == {2, 4, 6}
        assert all(1 <= each.minimum <= each.wanted for each in tried)

    def test_in_fixed_mode_differ_in_the_workers_alone(self) -> None:
        assert candidates(Sizes(2, 4), 4, 99, fixed=True) == [Sizes(2, 2), Sizes(2, 6), Sizes(2, 8)]

    def test_each_is_better_in_what_it_says(self) -> None:
        tried = {
            Sizes(1, 1): made(200, 240, 5),  # cheaper, and later
            Sizes(1, 2): made(100, 120, 9),
            Sizes(1, 6): made(80, 90, 10.05),
            Sizes(1, 8): made(50, 60, 20),
        }
        assert [(each.title, each.sizes) for each in better(OWN, tried)] == [
            ("ends sooner, and costs no more", Sizes(1, 6)),
            ("costs less, and ends no later", Sizes(1, 2)),
            ("ends sooner", Sizes(1, 8)),
        ]

    def test_that_gain_little_are_none(self) -> None:
        assert better(OWN, {Sizes(1, 4): made(98, 117, 9.8)}) == []

    def test_with_which_fewer_runs_finish_are_none(self) -> None:
        assert better(OWN, {Sizes(4, 4): made(50, None, 5, finished=9)}) == []

    def test_with_which_more_runs_finish_come_first(self) -> None:
        tried = {Sizes(1, 4): made(110, 130, 11, finished=10)}
        own = made(100, None, 10, finished=8)
        assert better(own, tried) == [Alternative("more runs finish", Sizes(1, 4), tried[Sizes(1, 4)])]

    def test_of_a_market_are_found(self) -> None:
        # A second machine comes and goes: who wants both at least stands still in between, in the end for too long.
        flaky = [(begin, begin + 500) for begin in range(0, 7200, 1200)]
        market = trace(7200, (0, 7200), *flaky)
        strict, loose = (plan(minimum=least, steps=1000) for least in (2, 1))
        own, other = (figures(rehearse(each, [market], TARIFF, runs=3, limit=DAY), DAY) for each in (strict, loose))
        assert own.finished < other.finished == 3
        assert [each.title for each in better(own, {Sizes(1, 2): other})] == ["more runs finish"]


def status(*worlds: tuple[float, int], points: list[tuple[float, float]]) -> Status:
    times = tuple(NOON.timestamp() + at for at, _ in points)
    return Status(
        run="run",
        uid="uid",
        phase=Phase.SUCCEEDED,
        reason="",
        updated=NOON,
        history=tuple(World(NOON + timedelta(seconds=at), size, 1) for at, size in worlds),
        throughput=Series(1, tuple(range(len(points))), times, tuple(rate for _, rate in points)),
    )


class TestSpeed:
    def test_is_measured_by_the_size_of_the_world(self) -> None:
        points = [(at, 2.0 if at < 50 else 3.6) for at in range(0, 100, 10)]
        run = status((-1, 2), (45, 4), points=[(float(at), rate) for at, rate in points])
        assert measured(run) == {2: 2.0, 4: 3.6}
        assert measured(run, slots=2) == {1: 2.0, 2: 3.6}
        assert measured(run, slots=4) == {1: 3.6}

    def test_what_spans_a_change_does_not_count(self) -> None:
        points = [(0.0, 2.0), (10.0, 2.0), (20.0, 99.0), (30.0, 2.0), (40.0, 2.0), (50.0, 2.0)]
        assert measured(status((-1, 2), (15, 2), points=points)) == {2: 2.0}

    def test_too_few_measurements_are_none(self) -> None:
        assert measured(status((-1, 2), points=[(0.0, 1.0), (1.0, 1.0), (2.0, 1.0)])) == {}
        assert measured(status(points=[(float(at), 1.0) for at in range(9)])) == {}

    def test_one_size_is_taken_as_linear(self) -> None:
        speed = fitted({4: 2.0})
        assert speed.step_seconds(4) == pytest.approx(0.5)
        assert speed.scaling.efficiency == 1.0
        assert fitted({4: 2.0}, 0.8).scaling.efficiency == 0.8

    @given(st.floats(0.01, 100), st.floats(0.55, 1), st.sets(st.integers(1, 64), min_size=2, max_size=6))
    def test_a_fit_finds_what_was_there(self, seconds: float, efficiency: float, sizes: set[int]) -> None:
        true = speed_of(seconds, 3, Scaling(efficiency))
        found = fitted({size: 1 / true.step_seconds(size) for size in sizes})
        assert found.scaling.efficiency == pytest.approx(efficiency)
        assert found.step_seconds(3) == pytest.approx(seconds)

    def test_more_workers_are_never_slower(self) -> None:
        assert fitted({1: 2.0, 8: 1.0}).scaling.efficiency == LEAST_EFFICIENCY


def test_a_market_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="would be repeated"):
        one(plan(steps=10**7), trace(1, (0, 1)), limit=366 * DAY)


def test_fixed_mode_waits_for_all() -> None:
    market = trace(4 * HOUR, (0, 4 * HOUR), (0, 600), (900, 4 * HOUR))
    fixed = plan(replace(NO_CHECKPOINTS, mode=RecoveryMode.FIXED))
    assert one(fixed, market).seconds > one(plan(), market).seconds + 100
