"""The launcher's decision in fixed mode, row by row."""

from __future__ import annotations

from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import Decision, ListRanks
from elastic_runtime.run.spec import RecoveryMode
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
    facts,
    failed,
    session,
    settings,
    since,
    worker,
)

FIXED_MODE = settings(mode=RecoveryMode.FIXED)
FIXED = [
    Row(
        "the minimum is ready, and more are wanted: fixed waits for all",
        facts(3, A, B),
        Decision((), Phase.STARTING, "2 of 3 ranks can start"),
        FIXED_MODE,
        clocks=since(gathering_since=NOW - 500),
    ),
    Row(
        "one was lost: the others go on to the barrier by themselves",
        facts(3, A, C, session=session(SETTLED, "a", "b", "c")),
        Decision((), Phase.RUNNING, "3 ranks train"),
        FIXED_MODE,
    ),
    Row(
        "they stand there",
        facts(3, A, C, trained=True, session=session(WAITING, "a", "b", "c")),
        Decision((ListRanks(("a", "c"), 3),), Phase.SUSPENDED, "2 ranks can train, the least is 3"),
        FIXED_MODE,
    ),
    Row(
        "a replacement has come",
        facts(3, A, C, D, trained=True, session=session(WAITING, "a", "c")),
        Decision((ListRanks(("a", "c", "d"), 3),), Phase.SUSPENDED, "3 ranks can train, the least is 3"),
        FIXED_MODE,
    ),
    Row(
        "one has a notice: it stays until it is replaced",
        facts(2, A, worker("b", leaving=True, running=True), session=session(SETTLED, "a", "b")),
        Decision((), Phase.RUNNING, "2 ranks train"),
        FIXED_MODE,
    ),
    Row(
        "one has a notice, and its replacement is ready",
        facts(
            *(2, worker("a", running=True), worker("b", leaving=True, running=True), C),
            session=session(SETTLED, "a", "b"),
        ),
        Decision((ListRanks(("a", "c"), 2),), Phase.RUNNING, "2 ranks are listed, 2 shall train"),
        FIXED_MODE,
    ),
    Row(
        "one that flaps is held back: the others wait for it",
        facts(3, A, B, worker("c", usable_at=NOW + 5), trained=True, session=session(WAITING, "a", "b", minimum=3)),
        Decision((), Phase.SUSPENDED, "2 ranks can train, the least is 3"),
        FIXED_MODE,
    ),
    Row(
        "fewer are wanted, and those who are here are as many",
        facts(2, A, B, trained=True, session=session(WAITING, "a", "b", minimum=3)),
        Decision((ListRanks(("a", "b"), 2),), Phase.SUSPENDED, "2 ranks can train, the least is 2"),
        FIXED_MODE,
    ),
    Row(
        "it has been held back for long enough",
        facts(3, A, B, worker("c", usable_at=NOW), trained=True, session=session(WAITING, "a", "b")),
        Decision((ListRanks(("a", "b", "c"), 3),), Phase.SUSPENDED, "3 ranks can train, the least is 3"),
        FIXED_MODE,
    ),
    Row(
        "all ranks were lost: it starts again only with all",
        facts(3, A, B, trained=True),
        Decision((), Phase.SUSPENDED, "2 of 3 ranks can start"),
        FIXED_MODE,
    ),
    Row(
        "the minimum came in time, but not all",
        facts(3, A, B),
        failed(FailureKind.START_TIMEOUT, "no world of 3 ranks within 600 s"),
        FIXED_MODE,
        clocks=since(launched=NOW - 600.1),
    ),
    Row(
        "another size is asked for",
        facts(3, A, B, C, session=session(SETTLED, "a", "b")),
        Decision((ListRanks(("a", "b", "c"), 3),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
        FIXED_MODE,
    ),
]


class TestTable:
    @by_its_words(FIXED)
    def test_decides(self, row: Row) -> None:
        assert row.decide() == row.decided

    def test_waits_longest_at_the_minimum_of_fixed_mode(self) -> None:
        given = facts(3, A, trained=True, session=session(WAITING, "a"))
        fixed = settings(mode=RecoveryMode.FIXED, max_wait=30.0)
        assert decide_now(given, fixed, since(short_since=NOW - 31)) == failed(
            FailureKind.MAX_WAIT_EXCEEDED, "fewer than 3 ranks for 31 s"
        )
