"""The launcher's decision while a run is elastic and goes on, row by row.

While it forms a world, or is suspended: test_decide_suspended. In fixed mode: test_decide_fixed. Its end:
test_decide_ends. Its own place: test_decide_place. What holds for any facts whatever: test_decide_properties.
"""

from __future__ import annotations

import pytest

from elastic_runtime.engines.base import SessionOutcome, SessionState
from elastic_runtime.launcher.decision.decide import choose_keeper
from elastic_runtime.launcher.decision.facts import (
    CloseSession,
    Decision,
    ListRanks,
    OpenSession,
    ReleaseWorker,
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
    ended,
    facts,
    session,
    settings,
    since,
    worker,
)

STARTING = [
    Row("nobody is here", facts(2), Decision((), Phase.STARTING, "0 of 2 ranks can start")),
    Row(
        "a worker is here and not ready",
        facts(2, A, worker("b", ready=False)),
        Decision((), Phase.STARTING, "1 of 2 ranks can start"),
    ),
    Row(
        "all wanted are ready",
        facts(2, A, B),
        Decision((OpenSession(("a", "b"), 2),), Phase.STARTING, "2 ranks can start"),
    ),
    Row(
        "more than wanted are ready",
        facts(2, A, B, C),
        Decision((OpenSession(("a", "b"), 2),), Phase.STARTING, "2 ranks can start"),
    ),
    Row(
        "the minimum is ready, and more are wanted",
        facts(3, A, B),
        Decision((), Phase.STARTING, "2 of 3 ranks can start"),
        clocks=since(gathering_since=NOW - 9.9),
    ),
    Row(
        "the minimum has been ready for long, and more are wanted",
        facts(3, A, B),
        Decision((OpenSession(("a", "b"), 2),), Phase.STARTING, "2 ranks can start"),
        clocks=since(gathering_since=NOW - 10),
    ),
    Row(
        "a worker with a notice is not begun with",
        facts(2, A, B, worker("c", leaving=True), worker("d", leaving=True, running=True)),
        Decision((ReleaseWorker("c"), OpenSession(("a", "b"), 2)), Phase.STARTING, "2 ranks can start"),
    ),
    Row(
        "a slot whose rank failed is not usable yet",
        facts(2, A, worker("b", usable_at=NOW + 0.1)),
        Decision((), Phase.STARTING, "1 of 2 ranks can start"),
    ),
    Row(
        "a slot whose rank failed is usable again",
        facts(2, A, worker("b", usable_at=NOW)),
        Decision((OpenSession(("a", "b"), 2),), Phase.STARTING, "2 ranks can start"),
    ),
    Row(
        "a worker has two slots",
        facts(2, worker("a", 2), worker("b", 2)),
        Decision((OpenSession(("a0", "a1", "b0", "b1"), 4),), Phase.STARTING, "4 ranks can start"),
        settings(slots=2),
    ),
    Row(
        "the session was lost before its first world was complete",
        facts(2, A, B, session=ended(SessionOutcome.LOST)),
        Decision((CloseSession(),), Phase.STARTING, "the state was lost with its ranks: rank 0 (a) ended with SIGKILL"),
    ),
    Row(
        "the first world waits at the barrier",
        facts(2, A, C, session=session(WAITING, "a", "b")),
        Decision((ListRanks(("a", "c"), 2),), Phase.STARTING, "2 ranks can train, the least is 2"),
    ),
    Row(
        "the first world is forming",
        facts(2, A, B, session=session(SessionState.FORMING, "a", "b")),
        Decision((), Phase.STARTING, "a new world is forming"),
    ),
]
TRAINING = [
    Row(
        "all is well",
        facts(2, A, B, session=session(SETTLED, "a", "b")),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "a worker more is wanted and ready",
        facts(3, A, B, C, session=session(SETTLED, "a", "b")),
        Decision((ListRanks(("a", "b", "c"), 2),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
    ),
    Row(
        "a worker more is ready and not wanted",
        facts(2, A, B, C, session=session(SETTLED, "a", "b")),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "a worker less is wanted",
        facts(2, A, B, C, session=session(SETTLED, "a", "b", "c")),
        Decision((ListRanks(("a", "b"), 2),), Phase.RUNNING, "3 ranks are listed, 2 shall train"),
    ),
    Row(
        "one has a notice, and enough remain",
        facts(
            *(3, worker("a", running=True), worker("b", leaving=True, running=True), worker("c", running=True)),
            session=session(SETTLED, "a", "b", "c"),
        ),
        Decision((ListRanks(("a", "c"), 2),), Phase.RUNNING, "3 ranks are listed, 2 shall train"),
    ),
    Row(
        "one has a notice, and its replacement is ready",
        facts(
            *(2, worker("a", leaving=True, running=True), worker("b", running=True), C),
            session=session(SETTLED, "a", "b"),
        ),
        Decision((ListRanks(("b", "c"), 2),), Phase.RUNNING, "2 ranks are listed, 2 shall train"),
    ),
    Row(
        "all have a notice, and their replacements are ready: one hands the state on",
        facts(
            *(2, worker("a", leaving=True, running=True), worker("b", leaving=True, running=True), C, D),
            session=session(SETTLED, "a", "b"),
        ),
        Decision((ListRanks(("a", "c", "d"), 2),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
    ),
    Row(
        "all have a notice, and a replacement is listed, but does not train yet",
        facts(
            *(2, worker("a", leaving=True, running=True), worker("b", leaving=True, running=True), C, D),
            session=session(SETTLED, "a", "c", holders=("a", "b")),
        ),
        Decision((ListRanks(("a", "c", "d"), 2),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
    ),
    Row(
        "the one that hands the state on is lost, and the other is not listed any more",
        facts(2, worker("b", leaving=True, running=True), C, D, session=session(SETTLED, "a", "c", holders=("b",))),
        Decision((ListRanks(("b", "c", "d"), 2),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
    ),
    Row(
        "the one that hands the state on trains with those that have not got it yet",
        facts(
            2, worker("a", leaving=True, running=True), C, D, session=session(SETTLED, "a", "c", "d", holders=("a",))
        ),
        Decision((), Phase.RUNNING, "3 ranks train"),
    ),
    Row(
        "the one that had to go has handed the state on",
        facts(
            *(2, worker("a", leaving=True, running=True), worker("c", running=True), worker("d", running=True)),
            session=session(SETTLED, "a", "c", "d"),
        ),
        Decision((ListRanks(("c", "d"), 2),), Phase.RUNNING, "3 ranks are listed, 2 shall train"),
    ),
    Row(
        "one has a notice, and too few would remain",
        facts(2, worker("a", leaving=True, running=True), B, session=session(SETTLED, "a", "b")),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "one with a notice has left the world, and its rank has ended",
        facts(3, A, worker("b", leaving=True), C, session=session(SETTLED, "a", "c")),
        Decision((ReleaseWorker("b"),), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "one with a notice has left the world, and its rank still runs",
        facts(3, A, worker("b", leaving=True, running=True), C, session=session(SETTLED, "a", "c")),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "one was lost, and enough remain",
        facts(3, A, C, session=session(SETTLED, "a", "b", "c")),
        Decision((ListRanks(("a", "c"), 2),), Phase.RUNNING, "3 ranks are listed, 2 shall train"),
    ),
    Row(
        "one was lost, and too few remain",
        facts(2, A, session=session(SETTLED, "a", "b")),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "a newcomer comes in the moment that one was lost",
        facts(3, C, worker("b"), D, session=session(SETTLED, "a", "b", "c")),
        Decision((ListRanks(("b", "c", "d"), 2),), Phase.RUNNING, "3 ranks are listed, 3 shall train"),
    ),
    Row(
        "a slot whose rank failed comes back under a new name",
        facts(2, A, B, C, session=session(SETTLED, "a", "b", "x")),
        Decision((ListRanks(("a", "b"), 2),), Phase.RUNNING, "3 ranks are listed, 2 shall train"),
    ),
    Row(
        "a slot is held back for its last failure, and its present rank trains",
        facts(2, A, worker("b", usable_at=NOW + 5), C, session=session(SETTLED, "a", "b")),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "a new world is forming, and everything has changed",
        facts(3, C, D, worker("b", leaving=True), session=session(SessionState.FORMING, "a", "b", holders=("a",))),
        Decision((ReleaseWorker("b"),), Phase.RUNNING, "a new world is forming"),
    ),
    Row(
        "the ranks are ending, and another worker is ready",
        facts(3, A, B, C, session=session(SessionState.FINISHING, "a", "b")),
        Decision((), Phase.RUNNING, "the ranks are ending"),
    ),
]


class TestTable:
    @by_its_words(STARTING)
    def test_decides(self, row: Row) -> None:
        assert row.decide() == row.decided

    @by_its_words(TRAINING)
    def test_decides_once_trained(self, row: Row) -> None:
        assert row.decide(trained=True) == row.decided


@pytest.mark.parametrize(
    ("ends", "keeper"),
    [
        ({}, None),
        ({"a": None}, None),
        ({"a": 9.0, "b": None}, None),
        ({"a": 9.0}, "a"),
        ({"b": 9.0, "a": 9.0}, "b"),
        ({"b": 8.5, "a": 9.0}, "b"),
        ({"b": 7.5, "a": 9.0}, "a"),
        ({"c": 7.5, "b": 9.5, "a": 9.0}, "b"),
    ],
)
def test_of_those_that_wait_and_will_go_the_lowest_that_stays_longest_keeps_the_state(
    ends: dict[str, float | None], keeper: str | None
) -> None:
    assert choose_keeper(ends) == keeper
