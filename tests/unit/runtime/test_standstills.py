"""What is kept of what ranks say: whether one of them has moved between two questions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.launcher.decision.standstill import judge
from elastic_runtime.launcher.standstills import Standstills
from elastic_runtime.protocol.rank_link import Standing

WAITS = Standing(1, 40, 20, 3.0, waits=True, place="train.py:20")
COMMITTED = Standing(2, 40, 20, 3.0, waits=True, place="train.py:20")
WENT_ON = Standing(1, 41, 20, 3.0, waits=True, place="train.py:20")
WORKS = Standing(1, 40, 20, 3.0, waits=False, place="data.py:7")
UNCOUNTED = Standing(1, None, 20, 3.0, waits=True, place="train.py:20")
STOPPED, MUTE = "stopped", None
Told = Standing | str | None


def proves(*told: Told) -> bool:
    """What a second rank does is told, question by question; the first one works."""
    kept = Standstills(lambda: 100.0)
    for each in told:
        kept.asks(20, quiet=True)
        kept.said("a.0.0", WORKS)
        if isinstance(each, Standing):
            kept.said("b.0.0", each)
        elif each is STOPPED:
            kept.runs("b.0.0", stopped=True)
    inquiry = kept.inquiry({"a.0.0": 0, "b.0.0": 1})
    assert inquiry is not None
    assert inquiry.quiet
    return inquiry.proves


@pytest.mark.parametrize("told", [WAITS, STOPPED, MUTE])
def test_a_rank_that_does_the_same_twice_has_not_moved(told: Told) -> None:
    assert proves(told, told)
    assert not proves(told), "once is nothing"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WAITS, COMMITTED),
        (WAITS, WENT_ON),
        (WAITS, WORKS),
        (WORKS, WAITS),
        (WORKS, WORKS),
        (UNCOUNTED, UNCOUNTED),
        (STOPPED, WAITS),
        (WAITS, MUTE),
    ],
)
def test_what_else_it_says_proves_nothing(first: Told, second: Told) -> None:
    assert not proves(first, second)


def test_nobody_is_at_fault_for_collectives_of_some_ranks() -> None:
    kept, names = Standstills(lambda: 100.0), ("a.0.0", "b.0.0", "c.0.0")
    kept.asks(20)
    for rank_id, of_some in zip(names, (4, 0, 0), strict=True):
        kept.said(rank_id, replace(WAITS, collectives=40 + of_some, of_all=40))
    inquiry = kept.inquiry({each: rank for rank, each in enumerate(names)})
    assert inquiry is not None
    assert judge(inquiry.ranks).ranks == ()
    kept.said("b.0.0", replace(WAITS, collectives=44, of_all=44))
    inquiry = kept.inquiry({each: rank for rank, each in enumerate(names)})
    assert inquiry is not None
    assert [each.rank for each in judge(inquiry.ranks).ranks] == [1]


def test_ranks_that_have_stopped_at_a_durable_commit_are_excused_while_they_say_so() -> None:
    now = 100.0
    kept = Standstills(lambda: now)
    kept.stopped()
    now = 101.0
    kept.stopped()
    now = 102.0
    assert kept.excused(["a.0.0"]) == 101.0


def test_the_question_before_counts_and_none_of_another_world() -> None:
    assert not proves(WAITS, WENT_ON, WAITS)
    kept = Standstills(lambda: 100.0)
    kept.asks(20)
    kept.new_world(["a.0.0"])
    kept.asks(20)
    inquiry = kept.inquiry({"a.0.0": 0})
    assert inquiry is not None
    assert not inquiry.proves
