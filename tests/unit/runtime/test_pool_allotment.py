"""How a pool is divided among runs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_runtime.pool.allotment import Wish, allot, explain

LARGEST = 12


@st.composite
def wishes(draw: st.DrawFn) -> tuple[list[Wish], int]:
    """A pool, and wishes of runs that have come one after the other, and some of which have gone."""
    workers = draw(st.integers(1, LARGEST))
    runs: list[Wish] = []
    for index in range(draw(st.integers(0, 6))):
        minimum = draw(st.integers(1, LARGEST))
        wanted = draw(st.one_of(st.just(0), st.integers(minimum, LARGEST)))
        maximum = draw(st.integers(max(minimum, wanted), LARGEST))
        priority, greedy = draw(st.integers(1, 3)), draw(st.booleans())
        runs.append(Wish(f"run-{index}", minimum, wanted, maximum, priority, greedy, arrival=index))
        runs = settled(runs, workers)
        if runs and draw(st.booleans()):
            runs.pop(draw(st.integers(0, len(runs) - 1)))
    return runs, workers


def settled(runs: list[Wish], workers: int) -> list[Wish]:
    """The same runs with what they are allotted."""
    shares = allot(runs, workers)
    return [replace(wish, has=shares.get(wish.run, 0)) for wish in runs]


@given(wishes())
def test_shares_are_within_the_pool_and_each_runs_bounds(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    shares = allot(runs, workers)
    assert sum(shares.values()) <= workers
    assert_within_bounds(runs, shares)


def assert_within_bounds(runs: list[Wish], shares: dict[str, int]) -> None:
    for wish in runs:
        share = shares.get(wish.run, 0)
        assert share == 0 or wish.minimum <= share <= (wish.maximum if wish.greedy else wish.wanted)


@given(wishes(), st.integers(1, LARGEST))
def test_of_a_pool_that_has_become_smaller_runs_keep_their_minimums_alone(
    drawn: tuple[list[Wish], int], less: int
) -> None:
    runs, _ = drawn
    shares = allot(runs, less)
    kept = sum(wish.minimum for wish in runs if wish.has and wish.wanted)
    assert sum(shares.values()) <= max(less, kept)
    assert_within_bounds(runs, shares)
    assert all(shares[wish.run] for wish in runs if wish.has and wish.wanted)


@given(wishes())
def test_a_run_that_trains_keeps_its_minimum(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    shares = allot(runs, workers)
    for wish in runs:
        if wish.has and wish.wanted:
            assert shares[wish.run] >= wish.minimum


@given(wishes())
def test_nothing_is_idle_while_a_run_that_trains_wishes_for_it(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    shares = allot(runs, workers)
    if sum(shares.values()) < workers:
        for wish in runs:
            share = shares.get(wish.run, 0)
            assert share == 0 or share >= (wish.maximum if wish.greedy else wish.wanted)


@given(wishes())
def test_a_run_waits_only_for_minimums_and_for_those_before_it(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    shares = allot(runs, workers)
    kept = sum(min(wish.minimum, shares[wish.run]) for wish in runs if shares.get(wish.run))
    waiting = sorted(
        (wish for wish in runs if wish.wanted and wish.minimum <= workers and not shares[wish.run]),
        key=lambda wish: wish.place,
    )
    if waiting:
        assert waiting[0].minimum > workers - kept
        started_now = [wish for wish in runs if shares.get(wish.run) and not wish.has]
        assert all(wish.place < waiting[0].place for wish in started_now)


@given(wishes())
def test_a_higher_priority_has_all_it_wishes_before_a_lower_has_more_than_its_minimum(
    drawn: tuple[list[Wish], int],
) -> None:
    runs, workers = drawn
    shares = allot(runs, workers)
    for high in runs:
        for low in runs:
            if high.priority > low.priority and 0 < shares.get(high.run, 0) < high.wanted:
                assert shares.get(low.run, 0) in (0, low.minimum)


@given(wishes())
def test_equal_priorities_have_equal_shares_as_far_as_their_bounds_allow(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    shares = allot(runs, workers)
    for one in runs:
        for other in runs:
            short = 0 < shares.get(one.run, 0) < one.wanted
            if one.priority == other.priority and short and shares.get(other.run, 0) > other.minimum:
                assert shares[other.run] - shares[one.run] <= 1


@given(wishes())
def test_what_nobody_wishes_for_goes_to_a_greedy_run_and_back(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    modest = [replace(wish, greedy=False) for wish in runs]
    assert all(shares >= allot(modest, workers)[run] for run, shares in allot(runs, workers).items())


@given(wishes())
@settings(max_examples=300)
def test_shares_stay_while_no_wish_changes(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    once = settled(runs, workers)
    assert settled(once, workers) == once


@given(wishes())
def test_every_run_starts_once_those_before_it_have_ended(drawn: tuple[list[Wish], int]) -> None:
    runs, workers = drawn
    runs = [wish for wish in settled(runs, workers) if wish.wanted and wish.minimum <= workers]
    started = {wish.run for wish in runs if wish.has}
    everybody = {wish.run for wish in runs}
    while ready := [wish for wish in runs if wish.has]:
        runs = settled([wish for wish in runs if wish is not ready[0]], workers)
        started |= {wish.run for wish in runs if wish.has}
    assert started == everybody


def test_a_higher_priority_shrinks_a_lower_one_to_its_minimum() -> None:
    low = Wish("low", 1, 4, 4, priority=1, has=4)
    high = Wish("high", 2, 3, 3, priority=10, arrival=1)
    assert allot([low, high], 4) == {"high": 3, "low": 1}


def test_reasons_name_who_has_the_workers() -> None:
    low = Wish("low", 2, 2, 4, priority=1, arrival=1)
    high = Wish("high", 3, 3, 3, priority=10, has=3, name="digits")
    shares = allot([low, high], 4)
    assert explain(low, [low, high], shares, 4, "team-a") == (
        "waits for 2 workers of pool team-a: priority 1 beside digits (10)"
    )
    assert explain(high, [low, high], shares, 4, "team-a") == ""
    alone = replace(low, wanted=4)
    assert explain(alone, [alone], allot([alone], 3), 3, "team-a") == (
        "has 3 of 4 workers of pool team-a, which has 3 at most"
    )
    assert "at least" in explain(low, [low], allot([low], 1), 1, "team-a")
