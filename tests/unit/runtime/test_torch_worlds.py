"""Which ranks of a session of torch.distributed form a world, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.base import SessionOutcome, SessionState
from elastic_runtime.engines.torch.worlds import Decision, Facts, RankFact, decide

STARTING, READY = RankFact(), RankFact(ready=True)
HOLDER = RankFact(connected=True, synced=True)
WAITING = RankFact(ready=True, synced=True)
DONE = RankFact(connected=True, synced=True, done=True)


def facts(listed: str, running: dict[str, RankFact], members: str = "", **more: Any) -> Facts:
    """Ranks have letters for names."""
    return Facts(tuple(listed), more.pop("minimum", 1), running, tuple(members), **more)


class TestTheFirstWorld:
    def test_waits_for_all_that_are_listed(self) -> None:
        assert decide(facts("ab", {"a": READY, "b": STARTING})) == Decision(SessionState.FORMING)

    def test_is_of_those_that_are_listed_in_order(self) -> None:
        decision = decide(facts("ba", {"a": READY, "b": READY}))
        assert decision == Decision(SessionState.FORMING, form=("b", "a"))

    def test_a_rank_that_fails_before_ends_the_session(self) -> None:
        decision = decide(facts("ab", {"a": READY}, exits={"b": 7}))
        assert decision == Decision(SessionState.ENDED, SessionOutcome.FAILED)

    def test_one_that_has_nothing_to_do_is_an_early_exit(self) -> None:
        decision = decide(facts("ab", {"a": READY}, exits={"b": 0}))
        assert decision == Decision(SessionState.ENDED, SessionOutcome.EARLY_EXIT)

    def test_a_rank_that_is_listed_no_more_is_left_out(self) -> None:
        assert decide(facts("a", {"a": STARTING, "b": READY})).left_out == ("b",)


class TestAWorld:
    def test_forms_until_all_are_connected(self) -> None:
        assert decide(facts("ab", {"a": HOLDER, "b": STARTING}, "ab")) == Decision(SessionState.FORMING)

    def test_is_settled_then(self) -> None:
        assert decide(facts("ab", {"a": HOLDER, "b": HOLDER}, "ab")) == Decision(SessionState.SETTLED)

    def test_is_not_left_because_a_later_rank_says_first_that_it_has_the_state(self) -> None:
        running = {"a": RankFact(connected=True), "b": HOLDER}
        assert decide(facts("ab", running, "ab", had_state=True)) == Decision(SessionState.SETTLED)

    def test_is_left_for_a_newcomer_only_once_that_is_ready(self) -> None:
        running = {"a": HOLDER, "b": STARTING}
        assert not decide(facts("ab", running, "a", had_state=True)).wants_another
        assert decide(facts("ab", running | {"b": READY}, "a", had_state=True)).wants_another

    def test_is_left_by_a_member_together_with_the_coming_of_a_newcomer_within_a_bound(self) -> None:
        running = {"a": HOLDER, "b": HOLDER, "c": STARTING}
        replaced = facts("ac", running, "ab", had_state=True)
        assert not decide(replaced).wants_another, "or a would be alone for a moment"
        assert decide(replace(replaced, hurries=True)).leaving == (1,)
        ready = decide(facts("ac", running | {"c": READY}, "ab", had_state=True))
        assert (ready.wants_another, ready.leaving) == (True, (1,))

    def test_is_left_when_a_member_is_listed_no_more(self) -> None:
        assert decide(facts("b", {"a": HOLDER, "b": HOLDER}, "ab", had_state=True)).wants_another

    def test_goes_on_where_too_few_would_be_left(self) -> None:
        decision = decide(facts("b", {"a": HOLDER, "b": HOLDER}, "ab", had_state=True, minimum=2))
        assert decision == Decision(SessionState.SETTLED)

    def test_is_broken_by_a_loss(self) -> None:
        decision = decide(facts("ab", {"a": HOLDER}, "ab", exits={"b": -9}))
        assert decision == Decision(SessionState.FORMING, is_broken=True)

    def test_is_broken_where_a_rank_says_so(self) -> None:
        assert decide(facts("ab", {"a": HOLDER, "b": HOLDER}, "ab", broken=True)).is_broken


class TestTheNextWorld:
    def test_has_those_who_have_the_state_first(self) -> None:
        running = {"a": READY, "b": WAITING, "c": WAITING}
        assert decide(facts("abc", running, "cb", had_state=True)).form == ("c", "b", "a")

    def test_has_the_same_state_where_all_have_left_at_one_commit_and_nobody_comes(self) -> None:
        running = {"a": WAITING, "b": WAITING}
        assert decide(facts("b", running, "ab", had_state=True)).alike == 1
        assert decide(facts("b", running, "ab", had_state=True, broken=True)).alike == 0
        assert decide(facts("ab", {"a": WAITING}, "ab", had_state=True, exits={"b": -9})).alike == 0
        assert decide(facts("abc", {**running, "c": READY}, "ab", had_state=True)).alike == 2

    def test_waits_for_every_member_that_is_left(self) -> None:
        running = {"a": WAITING, "b": HOLDER}
        assert decide(facts("abc", running, "abc", had_state=True, exits={"c": -9})).form == ()

    def test_waits_below_the_minimum(self) -> None:
        decision = decide(facts("a", {"a": WAITING}, "ab", had_state=True, minimum=2, exits={"b": -9}))
        assert decision == Decision(SessionState.WAITING)

    def test_is_none_where_nobody_is_left_who_has_the_state(self) -> None:
        decision = decide(facts("ab", {"b": READY}, "ab", had_state=True, exits={"a": -9}))
        assert decision == Decision(SessionState.ENDED, SessionOutcome.LOST)

    def test_is_one_where_nobody_has_had_the_state(self) -> None:
        assert decide(facts("b", {"b": READY}, "ab", exits={"a": -9})).form == ("b",)


class TestTheEnd:
    def test_waits_for_all(self) -> None:
        assert decide(facts("ab", {"a": DONE, "b": HOLDER}, "ab")) == Decision(SessionState.SETTLED)
        assert decide(facts("ab", {"a": DONE, "b": DONE}, "ab")) == Decision(SessionState.FINISHING, all_done=True)

    def test_a_loss_before_all_are_done_brings_the_others_back(self) -> None:
        assert decide(facts("ab", {"a": DONE}, "ab", exits={"b": -9})).is_broken

    def test_is_one_when_all_have_ended(self) -> None:
        ended = {"a": 0, "b": 0}
        assert decide(facts("ab", {}, "ab", exits=ended, finished=True)).outcome is SessionOutcome.SUCCEEDED
        assert decide(facts("ab", {}, "ab", exits={"a": 0, "b": 3})).outcome is SessionOutcome.FAILED

    def test_is_early_where_others_want_to_go_on(self) -> None:
        left = facts("ab", {"a": HOLDER}, "ab", exits={"b": 0})
        assert decide(left) == Decision(SessionState.FINISHING, is_broken=True)
        left = facts("ab", {"a": WAITING}, "ab", exits={"b": 0})
        assert decide(left).outcome is SessionOutcome.EARLY_EXIT


ranks = st.builds(RankFact, st.booleans(), st.booleans(), st.booleans(), st.booleans())
names = st.lists(st.sampled_from("abcde"), unique=True).map("".join)


@given(names, names, st.dictionaries(st.sampled_from("abcde"), ranks), st.integers(1, 4), st.booleans(), st.booleans())
def test_a_world_never_lacks_what_it_needs(
    listed: str, members: str, running: dict[str, RankFact], minimum: int, broken: bool, had_state: bool
) -> None:
    exits = {each: -9 for each in members if each not in running}
    had_state = had_state and bool(members)  # Nobody had it before the first world.
    known = facts(listed, running, members, minimum=minimum, broken=broken, had_state=had_state, exits=exits)
    decision = decide(known)
    assert (decision.state is SessionState.ENDED) == (decision.outcome is not None)
    if decision.form:
        assert len(decision.form) >= minimum
        assert set(decision.form) <= set(listed)
        assert all(running[each].ready for each in decision.form)
        assert not had_state or decision.form[0] in known.holders
    assert not set(decision.left_out) & {*listed, *members}
