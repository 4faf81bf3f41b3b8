"""At which commits the ranks of a world tell each other what they have heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from elastic_runtime.training.state.collectives import Agreements, Signals


@dataclass
class World:
    """Of two ranks; the other one has this to say."""

    engine_agrees: bool = False
    other: list[float] = field(default_factory=lambda: [0.0] * 6)
    size: int = 2
    collectives: int = 0

    def agrees(self) -> bool:
        return self.engine_agrees

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        self.collectives += 1
        return [max(pair) for pair in zip(numbers, self.other, strict=True)]


@pytest.fixture
def world() -> Any:
    return World()


def test_only_where_the_engine_says(world: Any) -> None:
    agreements = Agreements(world, always=False)
    assert not agreements.due()
    world.engine_agrees = True
    assert agreements.due()
    assert agreements.agree(Signals(updated=3.0, handover=2)) == Signals(updated=3.0, handover=2)


def test_at_each_from_when_any_rank_wants_that_until_none_does(world: Any) -> None:
    agreements = Agreements(world, always=False)
    world.other[-1] = 1.0
    assert agreements.agree(Signals()).always
    assert agreements.due()
    world.other[-1] = 0.0
    assert not agreements.agree(Signals()).always
    assert not agreements.due()
    agreements.agree(Signals(always=True))
    assert agreements.due()


def test_at_each_for_a_state_that_has_to(world: Any) -> None:
    agreements = Agreements(world, always=True)
    assert agreements.due()
    agreements.agree(Signals())
    assert agreements.due()


def test_a_rank_alone_agrees_with_itself() -> None:
    world: Any = World(size=1)
    assert Agreements(world, always=False).agree(Signals(write=1.0)) == Signals(write=1.0)
    assert world.collectives == 0
