"""The launcher's decision, row by row. What holds for any facts whatever: test_decide_properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from elastic_runtime.launcher.decide import choose_keeper, decide
from elastic_runtime.launcher.facts import (
    CloseSession,
    Decision,
    Facts,
    Finish,
    ListRanks,
    OpenSession,
    ReleaseWorker,
    SessionOutcome,
    SessionState,
    Settings,
)
from elastic_runtime.spec import RecoveryMode
from elastic_runtime.status import FailureKind, Phase
from tests.unit.runtime.decide_bench import NOW, ended, facts, session, settings, worker

USUAL = settings()


@dataclass(frozen=True)
class Row:
    says: str
    given: Facts
    decided: Decision
    settings: Settings = USUAL


def failed(kind: FailureKind, reason: str) -> Decision:
    return Decision((Finish(Phase.FAILED, kind),), Phase.FAILED, reason)


A, B, C, D = worker("a"), worker("b"), worker("c"), worker("d")
SETTLED, WAITING = SessionState.SETTLED, SessionState.WAITING

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
        facts(3, A, B, gathering_since=NOW - 9.9),
        Decision((), Phase.STARTING, "2 of 3 ranks can start"),
    ),
    Row(
        "the minimum has been ready for long, and more are wanted",
        facts(3, A, B, gathering_since=NOW - 10),
        Decision((OpenSession(("a", "b"), 2),), Phase.STARTING, "2 ranks can start"),
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
        Decision((CloseSession(),), Phase.STARTING, "all ranks were lost: rank 0 (a) ended with SIGKILL"),
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
            session=session(SETTLED, "a", "c"),
        ),
        Decision((ListRanks(("a", "c", "d"), 2),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
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
        facts(3, C, D, worker("b", leaving=True), session=session(SessionState.FORMING, "a", "b")),
        Decision((ReleaseWorker("b"),), Phase.RUNNING, "a new world is forming"),
    ),
    Row(
        "the ranks are ending, and another worker is ready",
        facts(3, A, B, C, session=session(SessionState.FINISHING, "a", "b")),
        Decision((), Phase.RUNNING, "the ranks are ending"),
    ),
]

SUSPENDED = [
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
        Decision((CloseSession(),), Phase.SUSPENDED, "all ranks were lost: rank 0 (a) ended with SIGKILL"),
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

FIXED_MODE = settings(mode=RecoveryMode.FIXED)
FIXED = [
    Row(
        "the minimum is ready, and more are wanted: fixed waits for all",
        facts(3, A, B, gathering_since=NOW - 500),
        Decision((), Phase.STARTING, "2 of 3 ranks can start"),
        FIXED_MODE,
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
        facts(3, A, B, worker("c", usable_at=NOW + 5), trained=True, session=session(WAITING, "a", "b")),
        Decision((), Phase.SUSPENDED, "2 ranks can train, the least is 3"),
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
        facts(3, A, B, trained=True, gathering_since=None),
        Decision((), Phase.SUSPENDED, "2 of 3 ranks can start"),
        FIXED_MODE,
    ),
    Row(
        "the minimum came in time, but not all",
        facts(3, A, B, launched=NOW - 600.1),
        failed(FailureKind.START_TIMEOUT, "no world of 3 ranks within 600 s"),
        FIXED_MODE,
    ),
    Row(
        "another size is asked for",
        facts(3, A, B, C, session=session(SETTLED, "a", "b")),
        Decision((ListRanks(("a", "b", "c"), 3),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
        FIXED_MODE,
    ),
]

GOOD = facts(2, A, B, session=session(SETTLED, "a", "b"), trained=True)
ENDS = [
    Row(
        "all ranks ended with 0",
        replace(GOOD, session=ended(SessionOutcome.SUCCEEDED)),
        Decision((Finish(Phase.SUCCEEDED),), Phase.SUCCEEDED, "all ranks ended with code 0"),
    ),
    Row(
        "somebody cancelled in the moment of the success",
        replace(GOOD, session=ended(SessionOutcome.SUCCEEDED), cancel="enough"),
        Decision((Finish(Phase.SUCCEEDED),), Phase.SUCCEEDED, "all ranks ended with code 0"),
    ),
    Row("somebody cancelled", replace(GOOD, cancel="enough"), failed(FailureKind.CANCELLED, "cancelled: enough")),
    Row("somebody cancelled without a word", replace(GOOD, cancel=""), failed(FailureKind.CANCELLED, "cancelled: ")),
    Row(
        "the lease has run out",
        replace(GOOD, lease_age=61.0),
        failed(FailureKind.ABANDONED, "nobody has renewed the lease for 61 s"),
        settings(lease=60),
    ),
    Row(
        "nobody has begun to watch",
        replace(GOOD, lease_age=901.0, watched=False),
        failed(
            FailureKind.ABANDONED,
            "nobody has begun to watch the run for 901 s: its task was ended, or no triggerer has room",
        ),
        settings(lease=6 * 3600),
    ),
    Row(
        "a rank ended early",
        replace(GOOD, session=ended(SessionOutcome.EARLY_EXIT, "rank 1 (b) ended with code 0")),
        failed(FailureKind.EARLY_EXIT, "a rank ended while others were still training: rank 1 (b) ended with code 0"),
    ),
    Row(
        "the ranks failed",
        replace(GOOD, session=ended(SessionOutcome.FAILED, "rank 0 (a) ended with code 1")),
        failed(FailureKind.RANK_FAILED, "the ranks failed: rank 0 (a) ended with code 1"),
    ),
    Row(
        "ranks failed too often",
        replace(GOOD, rank_failures=11),
        failed(FailureKind.RANK_FAILED, "11 ranks failed, 10 are allowed"),
    ),
    Row(
        "the world was reset too often",
        replace(GOOD, forced_resets=4),
        failed(FailureKind.RESET_LIMIT, "4 forced resets, 3 are allowed"),
        settings(reset_limit=3),
    ),
    Row(
        "nobody came",
        facts(2, A, launched=NOW - 600.1),
        failed(FailureKind.START_TIMEOUT, "no world of 2 ranks within 600 s"),
    ),
    Row(
        "too few for too long",
        facts(2, A, trained=True, short_since=NOW - 1800.1, session=session(WAITING, "a")),
        failed(FailureKind.MAX_WAIT_EXCEEDED, "fewer than 2 ranks for 1800 s"),
    ),
]

GOES_ON = [
    Row(
        "the lease is in time",
        replace(GOOD, lease_age=60.0),
        Decision((), Phase.RUNNING, "2 ranks train"),
        settings(lease=60),
    ),
    Row(
        "somebody may yet begin to watch",
        replace(GOOD, lease_age=900.0, watched=False),
        Decision((), Phase.RUNNING, "2 ranks train"),
        settings(lease=6 * 3600),
    ),
    Row(
        "somebody watches",
        replace(GOOD, lease_age=901.0),
        Decision((), Phase.RUNNING, "2 ranks train"),
        settings(lease=6 * 3600),
    ),
    Row(
        "nobody has to watch",
        replace(GOOD, lease_age=1e9, watched=False),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "there is no lease",
        replace(GOOD, lease_age=None),
        Decision((), Phase.RUNNING, "2 ranks train"),
        settings(lease=60),
    ),
    Row("a lease never ends", replace(GOOD, lease_age=1e9), Decision((), Phase.RUNNING, "2 ranks train")),
    Row("as many failures as allowed", replace(GOOD, rank_failures=10), Decision((), Phase.RUNNING, "2 ranks train")),
    Row(
        "as many resets as allowed",
        replace(GOOD, forced_resets=3),
        Decision((), Phase.RUNNING, "2 ranks train"),
        settings(reset_limit=3),
    ),
    Row("no limit of resets", replace(GOOD, forced_resets=999), Decision((), Phase.RUNNING, "2 ranks train")),
    Row(
        "the start is in time",
        facts(2, A, launched=NOW - 600),
        Decision((), Phase.STARTING, "1 of 2 ranks can start"),
    ),
    Row(
        "the start was in time, long ago",
        replace(GOOD, launched=NOW - 1e6),
        Decision((), Phase.RUNNING, "2 ranks train"),
    ),
    Row(
        "too few, and the wait is in time",
        facts(2, A, trained=True, short_since=NOW - 1800, session=session(WAITING, "a")),
        Decision((), Phase.SUSPENDED, "1 ranks can train, the least is 2"),
    ),
]


def by_its_words(rows: Sequence[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[row.says.replace(" ", "-") for row in rows])


class TestTable:
    @by_its_words([*STARTING, *FIXED, *ENDS, *GOES_ON])
    def test_decides(self, row: Row) -> None:
        assert decide(row.given, row.settings, NOW) == row.decided

    @by_its_words([*TRAINING, *SUSPENDED])
    def test_decides_once_trained(self, row: Row) -> None:
        assert decide(replace(row.given, trained=True), row.settings, NOW) == row.decided

    @pytest.mark.parametrize("trained", [False, True])
    @by_its_words(ENDS[:-2])
    def test_ends_whether_or_not_it_ever_trained(self, row: Row, trained: bool) -> None:
        assert decide(replace(row.given, trained=trained), row.settings, NOW) == row.decided

    def test_waits_longest_at_the_minimum_of_fixed_mode(self) -> None:
        given = facts(3, A, trained=True, short_since=NOW - 31, session=session(WAITING, "a"))
        decided = decide(given, settings(mode=RecoveryMode.FIXED, max_wait=30.0), NOW)
        assert decided == failed(FailureKind.MAX_WAIT_EXCEEDED, "fewer than 3 ranks for 31 s")


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
