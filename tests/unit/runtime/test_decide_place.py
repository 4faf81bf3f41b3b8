"""What the launcher decides about its own place in the run, and about workers that its platform refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionOutcome, SessionState
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import (
    Clocks,
    CloseSession,
    Decision,
    Facts,
    Finish,
    LeadershipState,
    OpenSession,
    Refusal,
    StepDown,
)
from elastic_runtime.run.status import Phase
from tests.unit.runtime.decide_bench import FRESH, NOW, A, B, decide_now, ended, facts, session, since

TRAINING = facts(2, A, B, session=session(SessionState.SETTLED, "a", "b"), trained=True)
ALONE = facts(2)


class TestMakesWay:
    def decided(self, given: Facts, leadership: LeadershipState) -> Decision:
        return decide_now(replace(given, leadership=leadership))

    @pytest.mark.parametrize(
        "given",
        [
            TRAINING,
            ALONE,
            replace(TRAINING, cancel="enough"),
            replace(TRAINING, session=ended(SessionOutcome.SUCCEEDED)),
            replace(TRAINING, session=ended(SessionOutcome.FAILED)),
        ],
    )
    def test_to_another_that_has_taken_over_whatever_else_there_is(self, given: Facts) -> None:
        for clocks in (FRESH, since(launched=NOW - 1e6)):
            assert decide_now(replace(given, leadership=LeadershipState.LOST), clocks=clocks).actions == (
                StepDown(handover=False),
            )

    @pytest.mark.parametrize("state", [SessionState.SETTLED, SessionState.WAITING])
    def test_when_it_is_taken_after_a_hand_over(self, state: SessionState) -> None:
        decided = self.decided(replace(TRAINING, session=session(state, "a", "b")), LeadershipState.ENDING)
        assert decided == Decision(
            (StepDown(handover=True),), Phase.SUSPENDED, "the launcher is being taken, and replaced"
        )

    @pytest.mark.parametrize("state", [SessionState.FORMING, SessionState.FINISHING])
    def test_at_once_when_nobody_could_hand_over(self, state: SessionState) -> None:
        given = replace(TRAINING, session=session(state, "a", "b"))
        assert self.decided(given, LeadershipState.ENDING).actions == (StepDown(handover=False),)
        assert self.decided(ALONE, LeadershipState.ENDING).actions == (StepDown(handover=False),)

    @pytest.mark.parametrize(
        ("given", "phase"),
        [
            (replace(TRAINING, session=ended(SessionOutcome.SUCCEEDED)), Phase.SUCCEEDED),
            (replace(TRAINING, session=ended(SessionOutcome.FAILED)), Phase.FAILED),
            (replace(TRAINING, cancel="enough"), Phase.FAILED),
        ],
    )
    def test_not_before_an_end_that_is_here_is_told(self, given: Facts, phase: Phase) -> None:
        [action] = self.decided(given, LeadershipState.ENDING).actions
        assert isinstance(action, Finish)
        assert action.phase is phase

    def test_rather_than_begin_again(self) -> None:
        given = replace(TRAINING, session=ended(SessionOutcome.LOST))
        assert self.decided(given, LeadershipState.ENDING).actions == (CloseSession(),)
        assert self.decided(replace(given, session=None), LeadershipState.ENDING).actions == (StepDown(handover=False),)


QUEUE = Refusal("Kubernetes says: no room")
NO_IMAGE = Refusal("Kubernetes says: no such image", hopeless=True)


class TestRefusals:
    def test_are_the_reason_of_a_wait(self) -> None:
        starting = decide_now(replace(ALONE, refusal=QUEUE))
        assert starting == Decision((), Phase.STARTING, "0 of 2 ranks can start; Kubernetes says: no room")
        waiting = facts(2, A, trained=True, session=session(SessionState.WAITING, "a"), refusal=QUEUE)
        assert decide_now(waiting).reason == "1 ranks can train, the least is 2; Kubernetes says: no room"

    @pytest.mark.parametrize(
        ("trained", "clocks", "kind"),
        [
            (False, since(launched=NOW - 601), FailureKind.START_TIMEOUT),
            (True, since(short_since=NOW - 1801), FailureKind.MAX_WAIT_EXCEEDED),
        ],
    )
    def test_are_the_cause_when_the_wait_was_too_long(self, trained: bool, clocks: Clocks, kind: FailureKind) -> None:
        decided = decide_now(replace(ALONE, trained=trained, refusal=QUEUE), clocks=clocks)
        assert decided.actions == (Finish(Phase.FAILED, kind),)
        assert decided.reason.endswith("; Kubernetes says: no room")

    def test_without_hope_end_a_run_that_has_not_begun(self) -> None:
        given = replace(ALONE, refusal=NO_IMAGE)
        assert decide_now(given, clocks=since(hopeless_since=NOW - 60)).actions == ()
        assert decide_now(given, clocks=since(hopeless_since=NOW - 60.1)) == Decision(
            (Finish(Phase.FAILED, FailureKind.POD_REFUSED),),
            Phase.FAILED,
            "its workers cannot run; Kubernetes says: no such image",
        )

    @pytest.mark.parametrize(
        "given",
        [
            replace(ALONE, trained=True),
            facts(2, A, B, session=session(SessionState.FORMING, "a", "b")),
            TRAINING,
        ],
    )
    def test_without_hope_are_waited_for_by_one_that_has(self, given: Facts) -> None:
        decided = decide_now(replace(given, refusal=NO_IMAGE), clocks=since(hopeless_since=NOW - 1000))
        assert decided.phase is not Phase.FAILED

    def test_do_not_matter_to_those_that_are_here(self) -> None:
        decided = decide_now(facts(2, A, B, refusal=NO_IMAGE), clocks=since(hopeless_since=NOW - 1))
        assert decided == Decision((OpenSession(("a", "b"), 2),), Phase.STARTING, "2 ranks can start")
