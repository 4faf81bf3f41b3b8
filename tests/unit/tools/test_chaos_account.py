"""The bar of ``make chaos-bar``: all time of a disturbed training is in one share, and each second in the right one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.account import Moments, Share, WholeStep, account, pace, whole_steps

TIMES = st.lists(st.floats(0.0, 100.0), max_size=6).map(sorted)


def notes(number: int, size: int, *times: float) -> list[dict[str, Any]]:
    return [{"step": number, "rank": rank, "size": size, "time": time} for rank, time in enumerate(times)]


def shares(*parts: tuple[Share, float]) -> Any:
    return pytest.approx(dict.fromkeys(Share, 0.0) | dict(parts))


def test_a_step_is_whole_when_the_last_rank_of_its_last_world_has_done_it() -> None:
    torn = notes(2, 3, 1.0, 1.2)
    assert whole_steps([*notes(1, 3, 0.5, 0.7, 0.6), *torn]) == [WholeStep(1, 0.7, 3)]
    assert whole_steps([*torn, *notes(2, 2, 4.0, 3.9)]) == [WholeStep(2, 4.0, 2)]
    assert whole_steps([*torn, *notes(2, 3, 4.0, 3.9, 3.8)]) == [WholeStep(2, 4.0, 3)]


def test_the_pace_is_of_steps_however_many_are_left_out() -> None:
    assert pace([WholeStep(1, 10.0, 2), WholeStep(5, 12.0, 2)]) == 0.5
    with pytest.raises(ValueError, match="no pace"):
        pace([WholeStep(1, 10.0, 2)])


def test_steps_at_the_undisturbed_pace_lose_nothing() -> None:
    steps = [WholeStep(number, number / 10, 8) for number in range(5)]
    assert account(steps, Moments(), 0.1, 0.08, 8) == shares((Share.TRAINING, 0.4))


def test_fewer_ranks_explain_a_part_of_a_longer_step() -> None:
    found = account([WholeStep(1, 0.0, 8), WholeStep(2, 0.15, 4)], Moments(), 0.1, 0.04, 8)
    assert found == shares((Share.TRAINING, 0.1), (Share.FEWER, 0.04), (Share.SLOWER, 0.01))


def test_a_kill_is_told_apart_into_what_followed_each_other() -> None:
    moments = Moments(kills=[10.05], noticed=[10.1, 10.2], worlds=[5.0, 10.5], entered=[5.1, 10.6, 10.7])
    found = account([WholeStep(1, 10.0, 8), WholeStep(2, 10.9, 8)], moments, 0.1, 0.1, 8)
    assert found == shares(
        (Share.REDONE, 0.05), (Share.NOTICING, 0.15), (Share.FORMING, 0.3), (Share.RESTORING, 0.2),
        (Share.TRAINING, 0.1), (Share.SLOWER, 0.1),
    )  # fmt: skip


def test_a_kill_before_the_last_step_that_was_still_whole_has_nothing_done_again() -> None:
    moments = Moments(kills=[9.95], noticed=[10.2], worlds=[10.5], entered=[10.5])
    found = account([WholeStep(1, 10.0, 8), WholeStep(2, 10.6, 8)], moments, 0.1, 0.1, 8)
    assert found == shares((Share.NOTICING, 0.2), (Share.FORMING, 0.3), (Share.TRAINING, 0.1))


def test_a_world_that_nobody_was_killed_for_is_a_planned_change() -> None:
    found = account([WholeStep(1, 10.0, 8), WholeStep(2, 10.3, 8)], Moments(worlds=[10.1]), 0.1, 0.1, 8)
    assert found == shares((Share.CHANGING, 0.2), (Share.TRAINING, 0.1))


@given(TIMES, TIMES, TIMES, TIMES, TIMES)
def test_the_shares_add_up_whatever_happened(
    times: list[float], kills: list[float], noticed: list[float], worlds: list[float], entered: list[float]
) -> None:
    steps = [WholeStep(number, time, 1 + number % 8) for number, time in enumerate(times)]
    found = account(steps, Moments(kills, noticed, worlds, entered), 0.1, 0.08, 8)
    assert sum(found.values()) == pytest.approx(sum(b.time - a.time for a, b in pairwise(steps)), abs=1e-6)
