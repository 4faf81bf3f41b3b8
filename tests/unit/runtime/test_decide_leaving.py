"""The launcher's decision about workers with a notice: those that are there until a known time train on until then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionFact
from elastic_runtime.launcher.decision.decide import choose_ranks
from elastic_runtime.launcher.decision.facts import Decision, ListRanks, WorkerFact
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import LEAVE_MARGIN, LEAVE_TOGETHER, TO_END
from tests.unit.runtime.decide_bench import (
    NOW,
    SETTLED,
    USUAL,
    A,
    B,
    C,
    D,
    Row,
    by_its_words,
    facts,
    session,
    settings,
    worker,
)

TAKES = 10.0
"""Seconds that ranks need to leave."""
SOON = TAKES + LEAVE_MARGIN
ABC = session(SETTLED, "a", "b", "c")
TRAIN = Decision((), Phase.RUNNING, "3 ranks train")


def noticed(name: str, left: float, *, punctual: bool = True) -> WorkerFact:
    """One that trains, and will be taken after so many seconds."""
    return replace(worker(name, leaving=True, running=True), gone_at=NOW + left, punctual=punctual)


def without(*ranks: str) -> Decision:
    return Decision((ListRanks(ranks, 2),), Phase.RUNNING, f"3 ranks are listed, {len(ranks)} shall train")


@by_its_words(
    [
        Row(
            "there is more time than it needs",
            facts(3, A, B, noticed("c", SOON + 0.1), session=ABC, leave_time=TAKES),
            TRAIN,
        ),
        Row(
            "there is as much time as it needs",
            facts(3, A, B, noticed("c", SOON), session=ABC, leave_time=TAKES),
            without("a", "b"),
        ),
        Row(
            "nobody knows how long it is there",
            facts(3, A, B, noticed("c", 100, punctual=False), session=ABC, leave_time=TAKES),
            without("a", "b"),
        ),
        Row(
            "nobody knows what it needs",
            facts(3, A, B, noticed("c", 100), session=ABC),
            without("a", "b"),
        ),
        Row(
            "its place is taken",
            facts(3, A, B, noticed("c", 100), D, session=ABC, leave_time=TAKES),
            without("a", "b", "d"),
        ),
        Row(
            "it was asked to leave before, and has not yet",
            facts(3, A, B, noticed("c", 100), session=session(SETTLED, "a", "b"), leave_time=TAKES),
            Decision((), Phase.RUNNING, "2 ranks train"),
        ),
        Row(
            "fewer are wanted",
            facts(2, A, B, noticed("c", 100), session=ABC, leave_time=TAKES),
            without("a", "b"),
        ),
        Row(
            "one leaves, and another one little later",
            facts(
                *(3, A, noticed("b", SOON + LEAVE_TOGETHER), noticed("c", SOON)),
                session=replace(ABC, minimum=1),
                leave_time=TAKES,
            ),
            Decision((ListRanks(("a",), 1),), Phase.RUNNING, "3 ranks are listed, 1 shall train"),
            settings(minimum=1),
        ),
        Row(
            "one leaves, and another one has time",
            facts(3, A, noticed("b", SOON + LEAVE_TOGETHER + 1), noticed("c", SOON), session=ABC, leave_time=TAKES),
            without("a", "b"),
        ),
    ]
)
def test_one_with_a_notice_trains_on(row: Row) -> None:
    assert row.decide() == row.decided


def test_all_train_on_while_all_have_time() -> None:
    everybody = [noticed(name, 100) for name in "abc"]
    assert choose_ranks(facts(3, *everybody, session=ABC, leave_time=TAKES), USUAL, NOW) == ("a", "b", "c")


def test_newcomers_take_the_places_and_one_hands_the_state_on() -> None:
    everybody = [noticed(name, 100) for name in "abc"]
    given = facts(2, *everybody, worker("d"), worker("e"), session=ABC, leave_time=TAKES)
    assert choose_ranks(given, USUAL, NOW) == ("a", "d", "e")


@pytest.mark.parametrize(("left", "ranks"), [(0.1, ("a", "b")), (0.0, ("a",))])
def test_ranks_that_are_restarted_need_time_for_the_scripts_own_checkpoint(left: float, ranks: tuple[str, ...]) -> None:
    restarts = SessionFact(SETTLED, ("a", "b"), restarts=True, minimum=1)
    needs = USUAL.restart_grace + TO_END + LEAVE_MARGIN
    given = facts(2, A, noticed("b", needs + left), session=restarts, leave_time=None)
    assert choose_ranks(given, settings(minimum=1), NOW) == ranks


def test_a_worker_that_is_in_no_world_is_not_begun_with() -> None:
    given = facts(3, A, B, noticed("c", 100), session=session(SETTLED, "a", "b"), leave_time=TAKES)
    assert choose_ranks(given, USUAL, NOW) == ("a", "b")
    assert C not in given.workers
