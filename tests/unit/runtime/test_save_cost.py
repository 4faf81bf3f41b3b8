"""What copies of a state cost is told once, where it is much."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.torch import DurableState
from elastic_runtime.training.state.save_cost import LEAST_COPIES, LEAST_TIME, LITTLE, MOST_CALLS, MUCH, SaveCost
from tests.unit.runtime.durable_bench import step, training
from tests.unit.runtime.rank_bench import Clock


def told(copy: float, rest: float, commits: int, every: int = 1) -> list[str]:
    """What is said of so many commits with the same times."""
    cost, now, words = SaveCost(), 100.0, list[str]()
    for _ in range(commits):
        now += rest
        words.append(cost.saved(now, now + copy, every))
        now += copy
    return [each for each in words if each]


def test_much_is_told_once_with_a_remedy() -> None:
    assert told(0.006, 0.054, 1000) == [
        "copies of the state take 10% of the training's time: 6.0 of 60.0 ms from one commit to the next. "
        "With commit_every=11 it is 1%, and losing a worker costs what was trained in as many calls of commit()"
    ]


def test_the_advice_counts_calls_of_commit() -> None:
    [words] = told(0.006, 0.054, 1000, every=3)
    assert " With commit_every=33 it is 1%, " in words


def test_what_would_be_too_seldom_is_not_advised() -> None:
    [words] = told(6.0, 0.05, 1000)
    assert words.endswith("from one commit to the next")


def test_nothing_is_told_of_a_short_run_or_of_few_commits() -> None:
    assert told(0.006, 0.054, 490) == []
    assert told(6.0, 54.0, LEAST_COPIES) == []
    assert len(told(6.0, 54.0, LEAST_COPIES + 1)) == 1


def test_little_is_not_told_later_either() -> None:
    cost = SaveCost()
    assert [cost.saved(float(at), at + MUCH / 2) for at in range(LEAST_COPIES + 1)] == [""] * (LEAST_COPIES + 1)
    assert [cost.saved(200.0 + at, 201.0 + at) for at in range(LEAST_COPIES + 1)] == [""] * (LEAST_COPIES + 1)


def test_short_copies_of_short_steps_are_not_told() -> None:
    assert told(0.0009, 0.001, 20_000) == []


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_the_advice_leads_to_little(copy: float, rest: float) -> None:
    found = told(copy, rest, LEAST_COPIES + 1 + math.ceil(LEAST_TIME / (copy + rest)) if copy + rest > 0.1 else 0)
    for words in found:
        match = re.search(r"commit_every=(\d+)", words)
        if match is None:
            assert copy / (copy + MOST_CALLS * rest) > LITTLE * 0.999
            continue
        times = int(match[1])
        assert copy / (copy + times * rest) <= LITTLE * 1.001
        assert times == 1 or copy / (copy + (times - 1) * rest) > LITTLE * 0.999


@pytest.mark.usefixtures("horovod", "no_thread_left")
def test_rank_0_says_so_in_its_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    state = DurableState(**training(), clock=clock)
    save = state._values.save

    def slow() -> None:
        clock.now += 0.2
        save()

    monkeypatch.setattr(state._values, "save", slow)
    for _ in range(2 * LEAST_COPIES):
        step(state)
        clock.now += 0.8
        state.commit()
    assert [each.message.split(":")[0] for each in caplog.records] == [
        "copies of the state take 20% of the training's time"
    ]
