"""Token buckets, and warnings that keep to them."""

from __future__ import annotations

import logging

import pytest

from elastic_runtime.pace import Pace, RateLimitedLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_free_and_more_is_owed() -> None:
    clock = Clock()
    pace = Pace(2.0, 3.0, clock)
    assert pace.pay(3.0) == 0.0
    assert pace.pay(1.0) == 0.5
    clock.now += 1.0
    assert pace.pay(1.0) == 0.0
    clock.now += 60.0
    assert pace.pay(4.0) == 0.5, "no more is kept than the burst"


def test_what_is_not_there_is_not_taken() -> None:
    clock = Clock()
    pace = Pace(0.5, 1.0, clock)
    assert [pace.take(), pace.take()] == [True, False]
    assert pace.until_next() == 2.0
    pace.give_back()
    assert [pace.until_next(), pace.take(), pace.take()] == [0.0, True, False]
    clock.now += 2.0
    assert pace.take()


def test_warnings_that_were_left_out_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    seldom = RateLimitedLog(logging.getLogger("tests.pace"), burst=2, every=30.0, now=clock)
    for number in range(5):
        seldom.warning("warning %d", number)
    clock.now += 30.0
    seldom.warning("warning %d", 5)
    assert [each.getMessage() for each in caplog.records] == [
        "warning 0",
        "warning 1",
        "warning 5 (and 3 like it before)",
    ]
