"""Sockets of a broken world are shut down again and again, until the rank has left it."""

from __future__ import annotations

import threading

import pytest

from elastic_runtime.engines.torch.cutting import Cutting

PATIENCE = 10.0


class Sockets:
    def __init__(self) -> None:
        self.cuts = 0
        self.third = threading.Event()

    def cut(self) -> None:
        self.cuts += 1
        if self.cuts == 3:
            self.third.set()


def test_it_goes_on_until_the_rank_has_left() -> None:
    sockets = Sockets()
    cutting = Cutting(sockets.cut, look=0.001)
    cutting.begin()
    assert sockets.third.wait(PATIENCE)
    cutting.end()
    seen = sockets.cuts
    assert [each for each in threading.enumerate() if each.name == "broken world"] == []
    assert sockets.cuts == seen


def test_of_two_words_there_is_one_thread() -> None:
    cutting = Cutting(lambda: None)
    cutting.begin()
    cutting.begin()
    assert len([each for each in threading.enumerate() if each.name == "broken world"]) == 1
    cutting.end()


def test_a_word_that_comes_while_it_ends_begins_another() -> None:
    cutting = Cutting(lambda: None, look=0.001)
    for _ in range(200):
        cutting.begin()
        word = threading.Thread(target=cutting.begin)
        word.start()
        cutting.end()
        word.join(PATIENCE)
        cutting.end()
    assert [each for each in threading.enumerate() if each.name == "broken world"] == []


def test_a_world_that_is_whole_is_left_without_a_cut() -> None:
    sockets = Sockets()
    Cutting(sockets.cut).end()
    assert sockets.cuts == 0


def test_a_rank_that_does_not_leave_says_where_it_stands(capfd: pytest.CaptureFixture[str]) -> None:
    sockets = Sockets()
    cutting = Cutting(sockets.cut, look=0.001, long=0.0)
    cutting.begin()
    assert sockets.third.wait(PATIENCE)
    cutting.end()
    assert capfd.readouterr().err.count("in test_a_rank_that_does_not_leave_says_where_it_stands") == 1
