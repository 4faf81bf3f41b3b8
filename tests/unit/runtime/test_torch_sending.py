"""Collectives that do not end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from elastic_runtime.engines.torch.sending import Stuck, wait_for


class Work:
    """Of c10d: ends at the n-th look, or never."""

    def __init__(self, looks: int, error: str = "") -> None:
        self.looks, self.error = looks, error

    def wait(self, _: timedelta) -> None:
        self.looks -= 1
        if self.looks > 0:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return self.looks <= 0


def test_one_that_takes_its_time_is_waited_for() -> None:
    work = Work(3)
    wait_for(work, lambda: False)
    assert work.is_completed()


def test_what_it_fails_with_is_raised() -> None:
    with pytest.raises(RuntimeError, match="closed by peer"):
        wait_for(Work(2, "closed by peer"), lambda: False)


def test_one_that_ends_just_after_a_look_has_not_failed() -> None:
    class Late(Work):
        def wait(self, _: timedelta) -> None:
            self.looks -= 1
            if self.looks >= 0:
                raise RuntimeError("Operation timed out!")

    work = Late(1)
    wait_for(work, lambda: True)
    assert work.looks == -1


def test_one_of_a_broken_world_is_left_to_itself() -> None:
    with pytest.raises(Stuck):
        wait_for(Work(1000), lambda: True)
