from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.retry import Retry, RetryPolicy, within

seconds = st.floats(min_value=0.001, max_value=1e6)


class TestDelay:
    def test_doubles_up_to_the_longest(self) -> None:
        policy = RetryPolicy(first=1.0, longest=5.0)
        assert [policy.delay(failures) for failures in (1, 2, 3, 4, 5000)] == [1.0, 2.0, 4.0, 5.0, 5.0]

    @given(first=seconds, longest=seconds, failures=st.integers(1, 10**6))
    def test_with_jitter_stays_between_first_and_full(self, first: float, longest: float, failures: int) -> None:
        full = RetryPolicy(first, longest).delay(failures)
        assert min(first, longest) <= RetryPolicy(first, longest, jitter=True).delay(failures) <= max(full, first)


def test_a_success_begins_anew() -> None:
    retry = Retry(RetryPolicy(first=1.0, longest=8.0))
    assert [retry.failed(), retry.failed(), retry.failures] == [1.0, 2.0, 2]
    retry.succeeded()
    assert retry.failed() == 1.0


@pytest.mark.parametrize(("time", "rounds"), [(0.0, 1), (0.05, 2)])
def test_within_a_time_there_is_at_least_one_attempt(time: float, rounds: int) -> None:
    async def count() -> int:
        return len([None async for _ in within(time, pause=0.04)])

    assert asyncio.run(count()) >= rounds
