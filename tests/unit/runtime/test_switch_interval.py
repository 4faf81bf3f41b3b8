"""The interval at which threads take turns is as before when the last writer has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from elastic_runtime.training.checkpointing.writer import SOON, SwitchInterval


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def now() -> float:
    return round(sys.getswitchinterval(), 6)


def test_two_that_overlap() -> None:
    turns, before = SwitchInterval(), now()
    seen = []
    for change in (turns.begin, turns.begin, turns.end, turns.end):
        change()
        seen.append(now())
    assert seen == [SOON, SOON, SOON, before]


@pytest.mark.parametrize("microseconds", [1, 50, 57, 100, 4999, 5000])
def test_as_long_as_the_script_has_made_them_they_are_again(microseconds: int) -> None:
    sys.setswitchinterval((microseconds + 0.5) / 1e6)
    turns = SwitchInterval()
    for _ in range(5):
        turns.begin()
        assert now() == min(SOON, microseconds / 1e6)
        turns.end()
        assert now() == microseconds / 1e6
