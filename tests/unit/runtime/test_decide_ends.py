"""The launcher's decision to end a run, row by row, and what is no reason yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.engines.base import HOW_TO_JOIN, SessionOutcome, SessionState
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import CommitFact, Decision, Ending, Finish
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import LAST_WRITE
from tests.unit.runtime.decide_bench import (
    NOW,
    SETTLED,
    WAITING,
    A,
    B,
    Row,
    by_its_words,
    ended,
    facts,
    failed,
    session,
    settings,
    since,
)

GOOD = facts(2, A, B, session=session(SETTLED, "a", "b"), trained=True)
LEFT = replace(
    GOOD,
    session=ended(SessionOutcome.FAILED, "rank 1 (b) ended with code 0, rank 0 (a) ended with code 1"),
    is_consequence=True,
)
ENDING = replace(GOOD, session=session(SessionState.FINISHING, "a", "b"))
DONE = replace(ENDING, session=replace(session(SessionState.FINISHING, "a", "b"), done=True))
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
        failed(FailureKind.ABANDONED, "the lease has not been renewed for 61 s"),
        settings(lease=60),
    ),
    Row(
        "no task has watched",
        replace(GOOD, lease_age=901.0, watched=False),
        failed(
            FailureKind.ABANDONED,
            "no task has watched the run for 901 s: its task was ended, or no triggerer has room",
        ),
        settings(lease=6 * 3600),
    ),
    Row(
        "a rank said that it ended, and others came back",
        replace(
            GOOD,
            session=ended(SessionOutcome.EARLY_EXIT, "rank 1 (b) ended with code 0"),
            ended=Ending(((1, 12),), (0,)),
        ),
        failed(
            FailureKind.EARLY_EXIT,
            "a rank ended while others were still training: rank 1 ended its training at step 12; "
            "rank 1 (b) ended with code 0",
        ),
    ),
    Row(
        "the others failed since a rank had ended",
        replace(LEFT, ended=Ending(((1, 12),), (0,))),
        failed(
            FailureKind.EARLY_EXIT,
            "a rank ended while others were still training: rank 1 ended its training at step 12; "
            "rank 1 (b) ended with code 0, rank 0 (a) ended with code 1",
        ),
    ),
    Row(
        "a rank failed by itself after another had ended",
        replace(LEFT, ended=Ending(((1, 12),), (0,)), is_consequence=False),
        failed(FailureKind.RANK_FAILED, "the ranks failed: rank 1 (b) ended with code 0, rank 0 (a) ended with code 1"),
    ),
    Row(
        "a rank failed after all had ended at one step",
        replace(LEFT, ended=Ending(((0, 12), (1, 12)), ())),
        failed(FailureKind.RANK_FAILED, "the ranks failed: rank 1 (b) ended with code 0, rank 0 (a) ended with code 1"),
    ),
    Row(
        "a rank never ends after another did early",
        replace(ENDING, ended=Ending(((1, 12),), (0,))),
        failed(
            FailureKind.EARLY_EXIT,
            "a rank ended while others were still training: rank 1 ended its training at step 12; "
            "not all ranks have ended 1801 s after the first (recovery.max_wait)",
        ),
        clocks=since(finishing_since=NOW - 1801),
    ),
    Row(
        "a rank never ends after all had ended their training",
        replace(ENDING, ended=Ending(((0, 12), (1, 12)), ())),
        failed(FailureKind.RANK_FAILED, "not all ranks have ended 1801 s after the first (recovery.max_wait)"),
        clocks=since(finishing_since=NOW - 1801),
    ),
    Row(
        "no rank ends a day after all had ended their training",
        DONE,
        failed(FailureKind.RANK_FAILED, "no rank has ended 86401 s after all had ended their training"),
        clocks=since(done_since=NOW - LAST_WRITE - 1),
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
        facts(2, A),
        failed(FailureKind.START_TIMEOUT, "no world of 2 ranks within 600 s"),
        clocks=since(launched=NOW - 600.1),
    ),
    Row(
        "too few for too long",
        facts(2, A, trained=True, session=session(WAITING, "a")),
        failed(FailureKind.MAX_WAIT_EXCEEDED, "fewer than 2 ranks for 1800 s"),
        clocks=since(short_since=NOW - 1800.1),
    ),
]
GOES_ON = [
    Row(
        "ranks are ending",
        ENDING,
        Decision((), Phase.RUNNING, "the ranks are ending"),
        clocks=since(finishing_since=NOW - 1),
    ),
    Row(
        "a rank goes on alone for long",
        ENDING,
        Decision((), Phase.RUNNING, "the ranks are ending: the run fails unless all have ended after 1800 s"),
        clocks=since(finishing_since=NOW - 1800),
    ),
    Row(
        "a rank that goes on alone has been busy",
        replace(ENDING, excused=NOW - 1799),
        Decision((), Phase.RUNNING, "the ranks are ending: the run fails unless all have ended after 1800 s"),
        clocks=since(finishing_since=NOW - 3600),
    ),
    Row(
        "all have ended their training and evaluate",
        DONE,
        Decision((), Phase.RUNNING, "the ranks are ending"),
        clocks=since(done_since=NOW - LAST_WRITE),
    ),
    Row(
        "all have ended their training and train once more",
        replace(DONE, commits=CommitFact(NOW - 1, 1.0)),
        Decision((), Phase.RUNNING, "the ranks are ending"),
        clocks=since(done_since=NOW - LAST_WRITE - 1),
    ),
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
        facts(2, A),
        Decision((), Phase.STARTING, "1 of 2 ranks can start"),
        clocks=since(launched=NOW - 600),
    ),
    Row(
        "the start was in time, long ago",
        GOOD,
        Decision((), Phase.RUNNING, "2 ranks train"),
        clocks=since(launched=NOW - 1e6),
    ),
    Row(
        "too few, and the wait is in time",
        facts(2, A, trained=True, session=session(WAITING, "a")),
        Decision((), Phase.SUSPENDED, "1 ranks can train, the least is 2"),
        clocks=since(short_since=NOW - 1800),
    ),
    Row(
        "a rank ended early",
        replace(GOOD, session=ended(SessionOutcome.EARLY_EXIT, "rank 1 (b) ended with code 0")),
        failed(FailureKind.EARLY_EXIT, "a rank ended while others were still training: rank 1 (b) ended with code 0"),
    ),
    Row(
        "a plain script ended before its ranks had met",
        replace(GOOD, session=ended(SessionOutcome.EARLY_EXIT, "rank 0 (a) ended with code 0"), trained=False),
        failed(
            FailureKind.EARLY_EXIT,
            "the script has ended with code 0 before its ranks had met: rank 0 (a) ended with code 0. " + HOW_TO_JOIN,
        ),
    ),
]


class TestTable:
    @by_its_words([*ENDS, *GOES_ON])
    def test_decides(self, row: Row) -> None:
        assert row.decide() == row.decided

    @pytest.mark.parametrize("trained", [False, True])
    @by_its_words(ENDS[:-4])
    def test_ends_whether_or_not_it_ever_trained(self, row: Row, trained: bool) -> None:
        assert row.decide(trained=trained) == row.decided
