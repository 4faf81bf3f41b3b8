"""Whether a script that is started anew goes on, and with which sizes it works."""

from __future__ import annotations

from elastic_runtime.launcher.record.lives import Lives


def life(lives: Lives, size: int, *steps: int | None) -> list[str]:
    lives.begins(size)
    lives.world_complete()
    return [words for step in steps if (words := lives.stepped(step))]


def test_a_script_that_goes_on_is_not_told_of() -> None:
    lives = Lives()
    assert life(lives, 2, 1, 2, 120) == []
    assert life(lives, 3, None, 121) == []


def test_one_that_starts_over_is_told_so_once_in_each_life() -> None:
    lives = Lives()
    assert life(lives, 2, 3, 120) == []
    told = "the script started over: step 3 after 120; it has loaded no checkpoint of its own"
    assert life(lives, 3, 3, 4, 5) == [told]
    assert life(lives, 2) == []
    assert life(lives, 2, 2) == ["the script started over: step 2 after 5; it has loaded no checkpoint of its own"]


def test_one_that_loads_an_old_checkpoint_has_not_started_over() -> None:
    lives = Lives()
    life(lives, 2, 1, 120)
    assert life(lives, 3, 100) == ["the script went back: step 100 after 120; what lay between is done again"]


def test_one_that_tells_from_where_it_goes_on_has_said_enough() -> None:
    lives = Lives()
    life(lives, 2, 1, 120)
    lives.begins(2)
    lives.resumed()
    assert lives.stepped(100) is None


def test_a_size_has_worked_once_its_world_is_over() -> None:
    lives = Lives()
    life(lives, 2, 1)
    assert lives.worked_before(2) == 0
    life(lives, 3)
    assert (lives.worked_before(3), lives.worked_before(2)) == (2, 0)
    lives.stepped(2)
    assert lives.worked_before(3) == 0, "it works with this one, too"


def test_a_refused_size_is_never_one_to_go_back_to() -> None:
    lives = Lives()
    life(lives, 2, 1)
    life(lives, 3)
    lives.refuse(3)
    life(lives, 2)
    assert lives.worked_before(2) == 0
    assert lives.refused == {3}
    lives.asked(3)
    assert lives.refused == frozenset()
