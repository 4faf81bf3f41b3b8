"""What the launcher remembers of how long things have lasted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.launcher.decision.decide import observe
from elastic_runtime.launcher.decision.facts import Clocks, Facts, Refusal, WorkerFact
from elastic_runtime.run.spec import RecoveryMode
from tests.unit.runtime.decide_bench import SETTLED, USUAL, WAITING, A, B, ended, facts, session, settings, worker

FORMING = SessionState.FORMING


def seen(*looks: Facts) -> Clocks:
    """After these looks, one a second from 0 on."""
    clocks = Clocks(launched=0.0)
    for now, given in enumerate(looks):
        clocks = observe(clocks, given, USUAL, float(now))
    return clocks


def trained(state: SessionState | None) -> Facts:
    fact = ended(SessionOutcome.LOST) if state is SessionState.ENDED else state and session(state, "a", "b")
    return facts(2, A, B, trained=True, session=fact)


class TestShort:
    @pytest.mark.parametrize(
        ("states", "since"),
        [
            ((SETTLED, WAITING, WAITING), 1.0),
            ((None, None), 0.0),
            ((SETTLED, SessionState.ENDED, None), 1.0),
            ((WAITING, SETTLED), None),
            ((WAITING, SessionState.FINISHING), None),
            ((SETTLED, FORMING), None),
            # Worlds that are lost before they are complete do not begin the wait anew.
            ((WAITING, FORMING, SessionState.ENDED, None, FORMING), 0.0),
            ((WAITING, FORMING, SETTLED, WAITING), 3.0),
        ],
    )
    def test_lasts_from_the_end_of_a_world_until_one_is_complete(
        self, states: tuple[SessionState | None, ...], since: float | None
    ) -> None:
        assert seen(*map(trained, states)).short_since == since

    def test_does_not_begin_before_the_first_world(self) -> None:
        assert seen(facts(2), facts(2, session=session(FORMING, "a"))).short_since is None


class TestGathering:
    def test_begins_with_the_minimum(self) -> None:
        assert seen(facts(3, A), facts(3, A, B), facts(3, A, B)).gathering_since == 1.0

    @pytest.mark.parametrize("other", [worker("b", ready=False), worker("b", leaving=True)])
    def test_counts_only_who_can_stay(self, other: WorkerFact) -> None:
        assert seen(facts(3, A, other)).gathering_since is None

    def test_begins_anew_when_one_of_the_minimum_is_lost(self) -> None:
        assert seen(facts(3, A, B), facts(3, A), facts(3, A, B)).gathering_since == 2.0

    def test_ends_with_a_session(self) -> None:
        assert seen(facts(3, A, B), facts(3, A, B, session=session(FORMING, "a", "b"))).gathering_since is None

    def test_is_of_all_that_are_wanted_in_fixed_mode(self) -> None:
        clocks = observe(Clocks(0.0), facts(3, A, B), settings(mode=RecoveryMode.FIXED), 1.0)
        assert clocks.gathering_since is None


def test_a_refusal_is_without_hope_as_long_as_it_says_so() -> None:
    hopeless, queued = facts(2, refusal=Refusal("no image", hopeless=True)), facts(2, refusal=Refusal("no room"))
    assert seen(queued, hopeless, hopeless).hopeless_since == 1.0
    assert seen(hopeless, queued, hopeless).hopeless_since == 2.0
    assert seen(hopeless, facts(2)).hopeless_since is None


class TestForming:
    def world(self, number: int, state: SessionState = FORMING) -> Facts:
        return facts(2, A, B, session=SessionFact(state, ("a", "b"), world=number))

    def test_lasts_until_the_world_is_complete(self) -> None:
        assert seen(self.world(1), self.world(1)).forming_since == 0.0
        assert seen(self.world(1), self.world(1, SETTLED)).forming_since is None

    def test_begins_anew_with_another_world(self) -> None:
        assert seen(self.world(1), self.world(2), self.world(2)).forming_since == 1.0

    def test_begins_anew_where_the_world_breaks(self) -> None:
        broken = facts(2, A, B, session=SessionFact(FORMING, ("a", "b"), world=1, stage=Stage.RETURNING))
        assert seen(self.world(1), broken, broken).forming_since == 1.0

    def test_begins_anew_with_another_session(self) -> None:
        assert seen(self.world(1), facts(2, A, B), self.world(1)).forming_since == 2.0


def test_ranks_end_since_the_first_has() -> None:
    ends = facts(2, A, B, session=session(SessionState.FINISHING, "a", "b"))
    trains = facts(2, A, B, session=session(SETTLED, "a", "b"))
    assert seen(trains, ends, ends).finishing_since == 1.0
    assert seen(ends, trains).finishing_since is None
    assert seen(ends, trains, ends).finishing_since == 2.0


def test_all_have_ended_their_training_until_the_first_process_ends() -> None:
    ends = facts(2, A, B, session=session(SessionState.FINISHING, "a", "b"))
    done = facts(2, A, B, session=replace(session(SessionState.FINISHING, "a", "b"), done=True))
    clocks = seen(done, done)
    assert (clocks.done_since, clocks.finishing_since) == (0.0, None)
    clocks = seen(done, done, ends, ends)
    assert (clocks.done_since, clocks.finishing_since) == (None, 2.0)


def test_a_moment_of_zero_is_one() -> None:
    assert seen(facts(2, A, B), facts(2, A, B)).gathering_since == 0.0


def test_facts_of_a_world() -> None:
    none = replace(facts(2), session=None)
    assert [replace(none, session=SessionFact(state, ())).has_world for state in SessionState] == [
        *(True, True, False, True, False)
    ]
    assert not none.has_world
