from __future__ import annotations

import pytest

from elastic_runtime.launcher.worker_pool import TellingAgain


@pytest.fixture
def telling() -> TellingAgain:
    """The first world of ranks a and b trains."""
    telling = TellingAgain()
    assert not due(telling, 1, "ab", is_open=False)
    assert not due(telling, 1, "ab"), "told when the notice came"
    return telling


def due(telling: TellingAgain, generation: int, ranks: str, *, is_open: bool = True, running: str = "") -> bool:
    return telling.due(generation, tuple(ranks), trains=True, is_open=is_open, runs=lambda rank: rank in running)


def test_the_next_world_once_where_the_writer_is_lost(telling: TellingAgain) -> None:
    assert due(telling, 2, "b", running="b")
    assert not due(telling, 2, "b", running="b")


def test_the_next_world_where_the_writer_stays(telling: TellingAgain) -> None:
    """It may have lost what another rank was to write with it."""
    assert due(telling, 2, "a", running="a")


def test_nobody_while_the_writer_leaves_and_writes(telling: TellingAgain) -> None:
    assert not due(telling, 2, "b", running="ab")
    assert due(telling, 2, "b", running="b"), "lost before it was durable"
    assert not due(telling, 2, "b", running="b")


def test_nobody_once_it_is_durable(telling: TellingAgain) -> None:
    assert not due(telling, 2, "b", running="ab")
    assert not due(telling, 2, "b", is_open=False, running="b")
    assert not due(telling, 2, "b", running="b"), "another notice is told when it comes"


def test_no_rank_0_while_a_world_forms(telling: TellingAgain) -> None:
    assert not telling.due(1, ("b",), trains=False, is_open=True, runs="ab".__contains__)
    assert not due(telling, 2, "b", running="ab")
