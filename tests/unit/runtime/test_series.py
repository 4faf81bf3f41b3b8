"""Values over steps, in few points."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.launcher.record.series import MAX_ALL_POINTS, MAX_POINTS, extended, noted, rewound, thinned
from elastic_runtime.run.status import MAX_METRICS, Series

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
STEPS = st.lists(st.integers(1, 50), min_size=1, max_size=120)
"""From each report to the next."""
LIMITS = st.integers(2, 40)


def told(steps: Iterable[int], limit: int = MAX_POINTS) -> Series:
    series = Series()
    for step in steps:
        series = extended(series, step, NOON + timedelta(seconds=step), step / 7, limit)
    return series


def sums(distances: list[int], first: int = 0) -> list[int]:
    steps = [first]
    for distance in distances:
        steps.append(steps[-1] + distance)
    return steps


@given(STEPS, LIMITS, st.integers(-5, 10**9))
def test_is_bounded_and_ascends_from_the_first_point_to_the_last(distances: list[int], limit: int, first: int) -> None:
    steps = sums(distances, first)
    series = told(steps, limit)
    assert len(series.steps) == len(series.times) == len(series.values) <= limit
    assert all(before < after for before, after in pairwise(series.steps))
    assert all(before <= after for before, after in pairwise(series.times))
    assert (series.steps[0], series.steps[-1]) == (steps[0], steps[-1])
    assert set(series.steps) <= set(steps)


@given(STEPS, LIMITS)
def test_covers_the_whole_run(distances: list[int], limit: int) -> None:
    """Nowhere is more left out than a stretch, and no stretch is wider than it takes."""
    series = told(sums(distances), limit)
    stretches = [step // series.stride for step in series.steps]
    assert len(set(stretches)) >= len(stretches) - 1, "one point a stretch, but for the last"
    assert max(after - before for before, after in pairwise(series.steps)) < 2 * series.stride + max(distances)
    assert series.stride == 1 or sum(distances) // (series.stride // 2) + 2 > limit


@given(STEPS, LIMITS)
def test_is_the_same_by_whatever_way_it_was_told(distances: list[int], limit: int) -> None:
    """A launcher that takes over in between, and reads the document of the one before, makes no difference."""
    steps = sums(distances)
    half = told(steps[: len(steps) // 2], limit)
    series = from_json(Series, to_json(half))
    for step in steps[len(steps) // 2 :]:
        series = extended(series, step, NOON + timedelta(seconds=step), step / 7, limit)
    assert series == told(steps, limit)


@given(STEPS, LIMITS, st.data())
def test_goes_back_with_the_training(distances: list[int], limit: int, data: st.DataObject) -> None:
    steps = sums(distances)
    back = data.draw(st.integers(0, steps[-1]))
    before = told(steps, limit)
    after = extended(before, back, NOON + timedelta(days=1), 0.5, limit)
    assert after.steps[-1] == back
    assert all(step < back for step in after.steps[:-1])
    assert after.values[-1] == 0.5
    kept = rewound(before, back)
    assert kept.steps == tuple(step for step in before.steps if step <= back)


def test_a_long_run_is_covered_evenly() -> None:
    series = told(range(0, 100_000, 10))
    assert MAX_POINTS / 2 < len(series.steps) <= MAX_POINTS
    distances = [after - before for before, after in pairwise(series.steps[:-1])]
    assert max(distances) - min(distances) <= 10


def test_a_clock_that_is_set_back_does_not_turn_the_curve() -> None:
    series = extended(extended(Series(), 1, NOON, 1.0), 2, NOON - timedelta(hours=1), 0.5)
    assert series.times[0] == series.times[1]


def test_values_keep_six_digits() -> None:
    assert extended(Series(), 1, NOON, 0.123456789).values == (0.123457,)


def test_nothing_can_be_thinned() -> None:
    assert thinned(Series(), 2) == Series()
    assert noted({}, {}, 1, NOON) == {}


@pytest.mark.parametrize("names", [1, 15, 30, 100])
def test_all_series_together_are_bounded(names: int) -> None:
    found: dict[str, Series] = {}
    values = {f"metric {number}": 1.0 for number in range(names)}
    for step in range(500):
        found = dict(noted(found, values, step, NOON))
    assert list(found) == list(values)
    assert sum(len(series.steps) for series in found.values()) <= MAX_ALL_POINTS
    assert all(len(series.steps) > 10 and (series.steps[0], series.steps[-1]) == (0, 499) for series in found.values())


def test_of_too_many_names_the_first_go() -> None:
    found = noted(
        noted({}, {"first": 1.0}, 0, NOON), {f"metric {number}": 1.0 for number in range(MAX_METRICS)}, 1, NOON
    )
    assert len(found) == MAX_METRICS
    assert "first" not in found


def test_more_metrics_share_the_same_room() -> None:
    found = noted({}, {}, 0, NOON)
    for step in range(1000):
        found = noted(found, {"loss": 1.0}, step, NOON)
    assert len(found["loss"].steps) > MAX_POINTS / 2
    found = noted(found, {f"metric {number}": 1.0 for number in range(59)}, 1000, NOON)
    assert len(found["loss"].steps) <= MAX_ALL_POINTS // 60
