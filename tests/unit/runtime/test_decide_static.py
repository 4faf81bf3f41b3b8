"""The launcher's decision about a script whose world cannot change: it has no more workers than train in it."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.engines.base import SessionFact
from elastic_runtime.launcher.decision.facts import Decision, HoldSize, ListRanks
from elastic_runtime.run.status import Phase
from tests.unit.runtime.decide_bench import SETTLED, A, B, C, Row, by_its_words, facts, settings, worker

STATIC = SessionFact(SETTLED, ("a", "b"), static=("a", "b"), minimum=1)
TOO_MANY = "2 ranks train without an elastic state, so 3 workers are too many"
TWO_SLOTS = [worker(name, slots=2, running=True) for name in ("a", "b")]


@by_its_words(
    [
        Row(
            "one more is asked for and has not come",
            facts(3, A, B, session=STATIC, trained=True),
            Decision((HoldSize(2),), Phase.RUNNING, TOO_MANY),
            settings(1),
        ),
        Row(
            "one more waits already to be let in",
            facts(3, A, B, C, session=replace(STATIC, listed=("a", "b", "c")), trained=True),
            Decision((HoldSize(2),), Phase.RUNNING, TOO_MANY),
            settings(1),
        ),
        Row(
            "as many are asked for as train",
            facts(2, A, B, session=STATIC, trained=True),
            Decision((), Phase.RUNNING, "2 ranks train"),
            settings(1),
        ),
        Row(
            "who has come beyond them is listed no more",
            facts(2, A, B, C, session=replace(STATIC, listed=("a", "b", "c")), trained=True),
            Decision((ListRanks(("a", "b"), 1),), Phase.RUNNING, "3 ranks are listed, 2 shall train"),
            settings(1),
        ),
        Row(
            "a worker counts whose other slot is in no world",
            facts(2, *TWO_SLOTS, session=replace(STATIC, listed=("a0", "a1", "b0"), static=("a0", "a1", "b0"))),
            Decision((ListRanks(("a0", "a1", "b0", "b1"), 2),), Phase.RUNNING, "3 ranks are listed, 4 shall train"),
            settings(1, slots=2),
        ),
        Row(
            "fewer are asked for: the script starts again with them",
            facts(1, A, B, session=STATIC, trained=True),
            Decision((ListRanks(("a",), 1),), Phase.RUNNING, "2 ranks are listed, 1 shall train"),
            settings(1),
        ),
        Row(
            "a script with a state grows",
            facts(3, A, B, C, session=replace(STATIC, static=(), holders=("a", "b")), trained=True),
            Decision((ListRanks(("a", "b", "c"), 1),), Phase.RUNNING, "2 ranks are listed, 3 shall train"),
            settings(1),
        ),
    ]
)
def test_decides(row: Row) -> None:
    assert row.decide() == row.decided
