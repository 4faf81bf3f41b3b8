"""Ranks whose training functions return before those of others."""

from __future__ import annotations

import pytest

from elastic_runtime.engines.base import SessionFact, SessionState, Stage
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import AskRanks, Clocks, CommitFact, Decision, Ending, Facts
from elastic_runtime.run.status import Phase
from elastic_runtime.run.waits import LAST_WRITE
from tests.unit.runtime.decide_bench import FRESH, NOW, SETTLED, USUAL, A, B, decide_now, facts, failed, session, since

EARLY = "a rank ended while others were still training: rank 1 ended its training at step 12"
BOUND = 5 * USUAL.timing.forming


def decided(ending: Ending, clocks: Clocks = FRESH, **more: object) -> Decision:
    return decide_now(facts(2, A, B, session=session(SETTLED, "a", "b"), ending=ending, **more), clocks=clocks)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(((1, 12), (2, 13)), (0,)), ", and rank 2 at step 13"),
        (Ending(((1, 12), (0, 20)), ()), ", and rank 0 at step 20"),
        (Ending(((1, 12),), (0, 2), step=13), ", and rank 0 has committed step 13"),
    ],
)
def test_others_that_are_further_show_it_at_once(ending: Ending, words: str) -> None:
    assert decided(ending) == failed(FailureKind.EARLY_EXIT, EARLY + words)


def test_others_that_stand_are_waited_for_within_a_bound() -> None:
    ending = Ending(((1, 12),), (0, 2), step=12)
    waits = Decision((), Phase.RUNNING, "1 ranks have ended their training, 2 have not")
    assert decided(ending) == waits
    asked = decided(ending, since(ending_since=NOW - BOUND))
    assert (asked.reason, [type(each) for each in asked.actions]) == (waits.reason, [AskRanks])
    late = f"{EARLY}, and ranks 0 and 2 have not within {BOUND + 1:.0f} s"
    assert decided(ending, since(ending_since=NOW - BOUND - 1)) == failed(FailureKind.EARLY_EXIT, late)


def test_all_that_have_ended_at_one_step_go_on() -> None:
    ending = Ending(((0, 12), (1, 12)), (), step=12)
    assert ending.together
    assert decided(ending, since(ending_since=NOW - BOUND - 1)).phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("more", "phase"),
    [
        ({}, Phase.FAILED),
        ({"commits": CommitFact(NOW - LAST_WRITE - 1, 1.0)}, Phase.FAILED),
        ({"commits": CommitFact(NOW - 1, 1.0)}, Phase.RUNNING),
        ({"commits": CommitFact(NOW - LAST_WRITE - 1, 1.0), "excused": NOW - 1}, Phase.RUNNING),
    ],
    ids=["stuck", "stuck-since-the-last-commit", "trains-once-more", "busy"],
)
def test_all_that_have_ended_have_a_day_without_a_commit(more: dict[str, object], phase: Phase) -> None:
    ending = Ending(((0, 12), (1, 12)), (), step=12)
    assert decided(ending, since(ending_since=NOW - LAST_WRITE), **more).phase is Phase.RUNNING
    assert decided(ending, since(ending_since=NOW - LAST_WRITE - 1), **more).phase is phase


def test_a_state_without_a_step_says_so() -> None:
    late = decided(Ending(((1, None),), (0,), step=3), since(ending_since=NOW - BOUND - 1))
    assert "rank 1 ended its training, and rank 0 has not within" in late.reason


@pytest.mark.parametrize(
    ("stage", "all_run", "may_end"),
    [
        (Stage.CONNECTING, True, False),
        (Stage.CONNECTING, False, True),
        (Stage.RETURNING, True, True),
    ],
    ids=["connects", "lacks-a-rank", "is-over"],
)
def test_nobody_ends_while_ranks_connect(stage: Stage, *, all_run: bool, may_end: bool) -> None:
    fact = SessionFact(SessionState.FORMING, ("a", "b"), world=1, stage=stage)
    assert Facts(2, (A, B), fact, all_run=all_run).may_end == may_end
    assert Facts(2, (A, B), None, all_run=all_run).may_end
