"""When a rank is told of that trains outside of any world, or without a state."""

from __future__ import annotations

import pytest

from elastic_runtime.script.unjoined import ENOUGH, StepsWithout


@pytest.mark.parametrize(
    ("connected_from", "told"),
    [(None, 1), (ENOUGH + 2, 1), (ENOUGH, 0), (1, 0)],
    ids=["never", "too late", "after steps that try a model", "before the first step"],
)
def test_it_is_told_once_after_enough_steps_without_a_world(connected_from: int | None, told: int) -> None:
    made, words = 0, []
    rank = StepsWithout(lambda: made >= (connected_from or 3 * ENOUGH), lambda: words.append(made))
    while made < 3 * ENOUGH:
        made += 1
        rank.stepped()
    assert words == [ENOUGH] * told


def test_who_was_in_a_world_once_may_go_on_without() -> None:
    words: list[None] = []
    worlds = iter([True, *[False] * (2 * ENOUGH)])
    rank = StepsWithout(lambda: next(worlds), lambda: words.append(None))
    for _ in range(2 * ENOUGH):
        rank.stepped()
    assert words == []


def test_several_steps_at_once_count_each() -> None:
    words: list[None] = []
    rank = StepsWithout(lambda: False, lambda: words.append(None))
    rank.stepped(ENOUGH)
    rank.stepped(ENOUGH)
    assert len(words) == 1
