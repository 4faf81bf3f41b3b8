"""The launcher's decision where ranks are restarted for each world, from the script's own checkpoints."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.engines.base import SessionFact, SessionOutcome
from elastic_runtime.launcher.decision.facts import CloseSession, Decision, Facts, ListRanks, WorkerFact
from elastic_runtime.run.spec import RecoveryMode
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import TO_END
from tests.unit.runtime.decide_bench import NOW, SETTLED, A, B, C, Row, by_its_words, ended, facts, settings, worker

GRACE = 25.0
TRAIN = SessionFact(SETTLED, ("a", "b"), restarts=True, minimum=2)
ALL_END = ": all write a checkpoint and end"


def leaving(name: str, left: float | None) -> WorkerFact:
    """With a notice, of which so many seconds are left."""
    return replace(worker(name, leaving=True, running=True), gone_at=None if left is None else NOW + left)


def at_minimum(*workers: WorkerFact, session: SessionFact = TRAIN) -> Facts:
    return facts(2, *workers, session=session, trained=True)


@by_its_words(
    [
        Row(
            "a notice at the minimum, with time for a replacement to come",
            at_minimum(A, leaving("b", GRACE + TO_END + 0.1)),
            Decision((), Phase.RUNNING, "2 ranks train"),
        ),
        Row(
            "no more time than a checkpoint takes",
            at_minimum(A, leaving("b", GRACE + TO_END)),
            Decision((ListRanks(("a",), 2),), Phase.RUNNING, f"b will be taken before others can take over{ALL_END}"),
        ),
        Row(
            "all will be taken",
            at_minimum(leaving("a", 20.0), leaving("b", 10.0)),
            Decision((ListRanks((), 2),), Phase.RUNNING, f"a and b will be taken before others can take over{ALL_END}"),
        ),
        Row(
            "one of two that will be taken has time, and stays no longer than the other",
            at_minimum(leaving("a", 500.0), leaving("b", 10.0)),
            Decision((ListRanks(("a",), 2),), Phase.RUNNING, f"b will be taken before others can take over{ALL_END}"),
        ),
        Row(
            "a replacement is ready",
            at_minimum(A, leaving("b", 10.0), C),
            Decision((ListRanks(("a", "c"), 2),), Phase.RUNNING, "2 ranks are listed, 2 shall train"),
        ),
        Row(
            "a fixed run is always at its minimum",
            at_minimum(A, leaving("b", 10.0)),
            Decision((ListRanks(("a",), 2),), Phase.RUNNING, f"b will be taken before others can take over{ALL_END}"),
            settings(1, 2, 4, mode=RecoveryMode.FIXED),
        ),
        Row(
            "ranks that go from world to world are not restarted for it",
            at_minimum(A, leaving("b", 10.0), session=replace(TRAIN, restarts=False, holders=("a", "b"))),
            Decision((), Phase.RUNNING, "2 ranks train"),
        ),
        Row(
            "nobody knows when",
            at_minimum(A, leaving("b", None)),
            Decision((), Phase.RUNNING, "2 ranks train"),
        ),
        Row(
            "all have ended",
            at_minimum(A, B, session=ended(SessionOutcome.SHORT, "too few are left for another world")),
            Decision(
                (CloseSession(),),
                Phase.SUSPENDED,
                "the ranks ended as they were asked to: too few are left for another world",
            ),
        ),
    ]
)
def test_decides(row: Row) -> None:
    assert row.decide() == row.decided
