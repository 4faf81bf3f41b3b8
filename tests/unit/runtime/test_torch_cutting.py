"""Sockets of a broken world are shut down again and again, until the rank has left it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from elastic_runtime.engines.torch.cutting import Cutting

THREAD_TIMEOUT = 10.0


class Sockets:
    def __init__(self) -> None:
        self.cuts = 0
        self.third = threading.Event()

    def cut(self) -> None:
        self.cuts += 1
        if self.cuts == 3:
            self.third.set()


def cutting_of(cut: Callable[[], None], look: float = 0.5, long: float = 15.0) -> Cutting:
    """Of a rank that is at work."""
    return Cutting(cut, lambda: lambda: 0.0, lambda: None, look, long)


def test_it_goes_on_until_the_rank_has_left() -> None:
    sockets = Sockets()
    cutting = cutting_of(sockets.cut, look=0.001)
    cutting.begin()
    assert sockets.third.wait(THREAD_TIMEOUT)
    cutting.end()
    seen = sockets.cuts
    assert [each for each in threading.enumerate() if each.name == "broken world"] == []
    assert sockets.cuts == seen


def test_of_two_words_there_is_one_thread() -> None:
    cutting = cutting_of(lambda: None)
    cutting.begin()
    cutting.begin()
    assert len([each for each in threading.enumerate() if each.name == "broken world"]) == 1
    cutting.end()


def test_a_word_that_comes_while_it_ends_begins_another() -> None:
    cutting = cutting_of(lambda: None, look=0.001)
    for _ in range(200):
        cutting.begin()
        word = threading.Thread(target=cutting.begin)
        word.start()
        cutting.end()
        word.join(THREAD_TIMEOUT)
        cutting.end()
    assert [each for each in threading.enumerate() if each.name == "broken world"] == []


def test_a_world_that_is_whole_is_left_without_a_cut() -> None:
    sockets = Sockets()
    cutting_of(sockets.cut).end()
    assert sockets.cuts == 0


def test_a_rank_that_does_not_leave_says_where_it_stands(capfd: pytest.CaptureFixture[str]) -> None:
    sockets = Sockets()
    cutting = cutting_of(sockets.cut, look=0.001, long=0.0)
    cutting.begin()
    assert sockets.third.wait(THREAD_TIMEOUT)
    cutting.end()
    assert capfd.readouterr().err.count("in test_a_rank_that_does_not_leave_says_where_it_stands") == 1


def test_a_rank_that_stands_still_for_long_is_told_of_at_each_look() -> None:
    stood, hung, third = iter((5.0, 20.0)), [], threading.Event()
    cuts = Sockets()

    def hang() -> None:
        hung.append(cuts.cuts)
        if len(hung) == 3:
            third.set()

    cutting = Cutting(cuts.cut, lambda: lambda: next(stood), hang, 0.001, 15.0)
    cutting.begin()
    assert third.wait(THREAD_TIMEOUT)
    cutting.end()
    assert hung[:3] == [3, 4, 5], "one cut by begin(), and one before each look"
