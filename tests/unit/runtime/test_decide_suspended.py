"""The launcher's decision while an elastic run forms a world, or is suspended, row by row."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.engines.base import SessionOutcome
from elastic_runtime.launcher.decision.decide import choose_ranks
from elastic_runtime.launcher.decision.facts import (
    CloseSession,
    Decision,
    ListRanks,
    OpenSession,
    ReformWorld,
)
from elastic_runtime.run.status import Phase
from tests.unit.runtime.decide_bench import (
    NOW,
    SETTLED,
    WAITING,
    A,
    B,
    C,
    D,
    Row,
    by_its_words,
    decide_now,
    ended,
    facts,
    forming,
    session,
    settings,
    since,
    worker,
)

HERE = (A, B, C)


FORMS = [
    Row(
        "a newcomer has not come yet, and all who hold the state are there",
        facts(3, *HERE, session=forming()),
        Decision((), Phase.RUNNING, "a new world is forming"),
        clocks=since(forming_since=NOW - 120),
    ),
    Row(
        "nobody who holds the state is left",
        facts(3, *HERE, session=forming(holders=())),
        Decision(
            (CloseSession(),),
            Phase.SUSPENDED,
            "a rank ended before the new world was complete, and no rank with the state is left",
        ),
    ),
    Row(
        "nobody who holds the state is left, and the others were on their way back",
        facts(3, *HERE, session=replace(forming(holders=(), given_up=True), detail="rank 0 (a) ended with SIGKILL")),
        Decision(
            (CloseSession(),),
            Phase.SUSPENDED,
            "rank 0 (a) ended with SIGKILL; a rank ended before the new world was complete, and no rank with the state "
            "is left",
        ),
    ),
    Row(
        "a newcomer does not come",
        facts(3, *HERE, session=forming()),
        Decision((ReformWorld(),), Phase.RUNNING, "no new world within 120 s"),
        clocks=since(forming_since=NOW - 120.1),
    ),
    Row(
        "a newcomer did not come, and the others are on their way back",
        facts(3, *HERE, session=forming(given_up=True)),
        Decision((), Phase.RUNNING, "a new world is forming"),
        clocks=since(forming_since=NOW - 240),
    ),
    Row(
        "the others do not come back either",
        facts(3, *HERE, session=forming(given_up=True)),
        Decision((CloseSession(),), Phase.SUSPENDED, "no new world within 240 s, and its ranks do not come back"),
        clocks=since(forming_since=NOW - 240.1),
    ),
    Row(
        "a first world may take as long as the start may",
        facts(3, *HERE, session=replace(forming(holders=None), world=1)),
        Decision((), Phase.RUNNING, "a new world is forming"),
        clocks=since(forming_since=NOW - 599),
    ),
]


SUSPENDED = [
    Row(
        "all who waited for others were lost",
        facts(2, C, session=session(WAITING, "a", holders=())),
        Decision((CloseSession(),), Phase.SUSPENDED, "no rank with the state is left"),
    ),
    Row(
        "too few are here",
        facts(2, A, session=session(WAITING, "a", "b")),
        Decision((ListRanks(("a",), 2),), Phase.SUSPENDED, "1 ranks can train, the least is 2"),
    ),
    Row(
        "too few are here, and they are listed",
        facts(2, A, session=session(WAITING, "a")),
        Decision((), Phase.SUSPENDED, "1 ranks can train, the least is 2"),
    ),
    Row(
        "a replacement has come",
        facts(2, B, C, session=session(WAITING, "b")),
        Decision((ListRanks(("b", "c"), 2),), Phase.SUSPENDED, "2 ranks can train, the least is 2"),
    ),
    Row(
        "all ranks were lost",
        facts(2, A, B, session=ended(SessionOutcome.LOST)),
        Decision(
            (CloseSession(),), Phase.SUSPENDED, "the state was lost with its ranks: rank 0 (a) ended with SIGKILL"
        ),
    ),
    Row(
        "all ranks were lost, and new ones can start",
        facts(2, A, B),
        Decision((OpenSession(("a", "b"), 2),), Phase.SUSPENDED, "2 ranks can start"),
    ),
    Row(
        "all ranks were lost, and too few can start",
        facts(2, A),
        Decision((), Phase.SUSPENDED, "1 of 2 ranks can start"),
    ),
]


class TestTable:
    @by_its_words([*FORMS, *SUSPENDED])
    def test_decides(self, row: Row) -> None:
        assert row.decide(trained=True) == row.decided


HELD = session(SETTLED, "a", "b", "c", minimum=1)
TAKEN = tuple(replace(each, leaving=True, running=True) for each in (A, B, C))


def test_all_who_hold_the_state_stay_until_the_hand_over_is_durable() -> None:
    least = settings(minimum=1, start=3, maximum=3)
    given = facts(3, *TAKEN, session=HELD, trained=True, handover_open=True)
    assert choose_ranks(given, least, NOW) == ("a", "b", "c")
    assert decide_now(given, least).actions == ()
    durable = replace(given, handover_open=False)
    assert choose_ranks(durable, least, NOW) == ("a",)
    assert decide_now(durable, least).actions == (ListRanks(("a",), 1),)


def test_they_are_no_reason_to_keep_a_worker_where_another_holds_the_state() -> None:
    least = settings(minimum=1, start=3, maximum=3)
    given = facts(3, A, *TAKEN[1:], session=HELD, trained=True, handover_open=True)
    assert choose_ranks(given, least, NOW) == ("a",)


def test_newcomers_that_take_it_over_come_in_as_far_as_there_is_room() -> None:
    given = facts(3, *TAKEN, D, session=HELD, trained=True, handover_open=True)
    assert choose_ranks(given, settings(minimum=1, start=3, maximum=3), NOW) == ("a", "b", "d")
    others = facts(3, *TAKEN, D, worker("e"), worker("f"), session=HELD, trained=True, handover_open=True)
    assert choose_ranks(others, settings(minimum=1, start=3, maximum=3), NOW) == ("a", "d", "e", "f")
