"""Measured paces: few blocks however long the run, and what they say of a pace and its spread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.launcher.record.paces import LEAST_SPREAD, MOST_BLOCKS, SHORTEST, Blocks, Measured, Paces
from elastic_runtime.run.status_progress import MAX_PACES, Pace

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_only_time_within_a_world_is_measured() -> None:
    paces = Paces()
    paces.world(2)
    for second in range(11):
        paces.stepped(10 * second, at(second))
    paces.world(0)
    paces.stepped(105, at(50))  # Said by a rank of the world that is over.
    paces.world(3)
    paces.stepped(110, at(100))
    paces.stepped(120, at(104))
    assert paces.told() == (Pace(2, 100, 10.0), Pace(3, 10, 4.0))


def test_steps_that_are_done_again_are_measured_from_there() -> None:
    paces = Paces()
    paces.world(1)
    for step, second in ((100, 0), (110, 10), (50, 11), (60, 21)):
        paces.stepped(step, at(second))
    assert paces.told() == (Pace(1, 20, 20.0),)


def test_a_slow_beginning_and_an_earlier_pace_count_less_and_less() -> None:
    blocks = Blocks()
    for _ in range(200):
        blocks.add(1, 5.0)
    for _ in range(1100):
        blocks.add(10, 1.0)
    assert blocks.measured(2).pace == pytest.approx(0.1, rel=0.05)


def test_the_interval_holds_the_pace_of_nine_of_ten_runs() -> None:
    held = 0
    for seed in range(200):
        random, blocks = Random(seed), Blocks()
        for _ in range(60):
            blocks.add(10, sum(random.expovariate(2.0) for _ in range(10)))
        found = blocks.measured(1).over(1e9)
        held += found.low <= 0.5 <= found.high
    assert held >= 170


def test_a_pace_with_one_block_may_be_half_off() -> None:
    found = Measured(2, 10, 10.0, 0.0, 1).over(100)
    assert (found.low, found.point, found.high) == (0.5, 1.0, 1.5)
    assert Measured(2, 10, 10.0, 0.0, 9).over(100).high == 1 + LEAST_SPREAD


def test_the_next_launcher_goes_on() -> None:
    paces = Paces((Pace(2, 100, 10.0), Pace(0, 1, 1.0), Pace(3, 0, 5.0)))
    paces.world(2)
    paces.stepped(100, at(0))
    paces.stepped(120, at(2))
    assert paces.told() == (Pace(2, 120, 12.0),)


def test_of_many_sizes_those_that_trained_last_stay() -> None:
    paces = Paces()
    for size in range(1, MAX_PACES + 11):
        paces.world(size)
        paces.stepped(size, at(10 * size))
        paces.stepped(size + 1, at(10 * size + 2))
    assert [each.ranks for each in paces.told()] == list(range(11, MAX_PACES + 11))


@given(st.lists(st.tuples(st.floats(1e-6, 1e9), st.floats(SHORTEST, 1e6)), min_size=1, max_size=300))
def test_blocks_are_few_and_lose_nothing(measurements: list[tuple[float, float]]) -> None:
    blocks = Blocks()
    for each in measurements:
        blocks.add(*each)
    assert len(blocks.blocks) <= MOST_BLOCKS
    assert blocks.total() == pytest.approx((sum(s for s, _ in measurements), sum(t for _, t in measurements)))
    found = blocks.measured(1)
    assert found.pace > 0
    assert found.variance >= 0


@given(st.lists(st.tuples(st.integers(-(2**53), 2**53), st.floats(-10, 10), st.integers(0, 3)), max_size=100))
def test_whatever_is_told_a_pace_is_positive(told: list[tuple[int, float, int]]) -> None:
    paces, second = Paces(), 0.0
    for step, passed, ranks in told:
        second += passed
        if ranks:
            paces.world(ranks - 1)
        paces.stepped(step, at(second))
    for each in paces.told():
        assert each.steps > 0
        assert each.seconds > 0
    assert all(each.pace > 0 for each in paces.measured())
