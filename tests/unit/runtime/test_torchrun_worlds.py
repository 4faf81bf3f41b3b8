"""When processes of a world are ended for the next one's, and how a session ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.base import SessionOutcome, SessionState
from elastic_runtime.engines.torchrun.worlds import Decision, Facts, decide, to_blame

FORMING = Decision(SessionState.FORMING)


def facts(listed: str, members: str = "", begun: str = "", **more: Any) -> Facts:
    """Ranks have letters for names; those with an exit code have ended, too."""
    ended = {*more.pop("ended", ""), *more.get("exits", {})}
    able = frozenset(more.pop("able", listed))
    return Facts(
        tuple(listed), able, more.pop("minimum", 1), tuple(members), frozenset(begun), frozenset(ended), **more
    )


def ends(outcome: SessionOutcome) -> Decision:
    return Decision(SessionState.ENDED, outcome)


def test_the_first_world_is_of_those_that_are_listed() -> None:
    assert decide(facts("ba")) == Decision(SessionState.FORMING, form=("b", "a"))


def test_a_world_forms_until_all_have_begun_and_is_left_alone_meanwhile() -> None:
    assert decide(facts("abc", "ab", "a")) == FORMING
    assert decide(facts("ab", "ab", "ab")) == Decision(SessionState.SETTLED)


@pytest.mark.parametrize("listed", ["abc", "a"])
def test_another_size_interrupts_all(listed: str) -> None:
    assert decide(facts(listed, "ab", "ab")) == Decision(SessionState.FORMING, interrupt=True)


def test_the_next_world_begins_once_all_have_ended() -> None:
    assert decide(facts("bc", "ab", "ab", interrupted=True, ended="a")) == FORMING
    over = facts("bc", "ab", "ab", interrupted=True, ended="ab")
    assert decide(over) == Decision(SessionState.FORMING, form=("b", "c"))


@pytest.mark.parametrize(("finished", "outcome"), [("ab", SessionOutcome.SUCCEEDED), ("a", None)])
def test_no_next_world_begins_where_all_had_ended_before_they_were_asked(
    finished: str, outcome: SessionOutcome | None
) -> None:
    over = facts("bc", "ab", "ab", interrupted=True, ended="ab", finished=frozenset(finished))
    assert decide(over).outcome is outcome


def test_who_is_lost_meanwhile_is_left_out_of_it() -> None:
    over = facts("bc", "ab", "ab", interrupted=True, ended="ab", able="c")
    assert decide(over) == Decision(SessionState.FORMING, form=("c",))


@pytest.mark.parametrize(("able", "minimum"), [("c", 2), ("", 1)])
def test_too_few_for_it_are_waited_for_by_the_launcher(able: str, minimum: int) -> None:
    over = facts("bc", "ab", "ab", interrupted=True, ended="ab", able=able, minimum=minimum)
    assert decide(over) == ends(SessionOutcome.SHORT)


def test_a_lost_rank_has_the_others_killed_at_once() -> None:
    assert decide(facts("ab", "ab", "ab", exits={"a": -9})) == Decision(SessionState.FORMING, kill=True)
    assert decide(facts("ab", "ab", "ab", exits={"a": -9}, ended="b")) == ends(SessionOutcome.LOST)


def test_a_failed_rank_may_have_failed_for_the_sake_of_one_that_is_lost() -> None:
    assert decide(facts("ab", "ab", "ab", exits={"b": 1})) == FORMING
    assert decide(facts("ab", "ab", "ab", exits={"b": 1, "a": -9})) == ends(SessionOutcome.LOST)


def test_a_failed_rank_alone_fails_the_run() -> None:
    assert decide(facts("ab", "ab", "ab", exits={"b": 1}, waited=True)).kill
    assert decide(facts("ab", "ab", "ab", exits={"b": 1}, waited=True, ended="a")) == ends(SessionOutcome.FAILED)


def test_one_that_aborts_may_do_so_for_the_sake_of_one_that_is_lost() -> None:
    assert decide(facts("abc", "abc", "abc", exits={"b": -6})) == FORMING, "the lost one may not be heard of yet"
    assert decide(facts("abc", "abc", "abc", exits={"b": -6, "a": -9})) == Decision(SessionState.FORMING, kill=True)
    assert decide(facts("ab", "ab", "ab", exits={"b": 0, "a": -6})) == ends(SessionOutcome.LOST)


@pytest.mark.parametrize("exits", [{"b": -6, "a": 1}, {"a": 1, "b": -6}])
def test_one_that_aborts_beside_one_that_fails_is_not_lost_in_whatever_order_they_are_heard(
    exits: dict[str, int],
) -> None:
    assert decide(facts("ab", "ab", "ab", exits=exits)) == ends(SessionOutcome.FAILED)
    says_that_a_peer_is_gone = facts("ab", "ab", "ab", exits=exits, gave_up=frozenset("a"))
    assert decide(says_that_a_peer_is_gone) == ends(SessionOutcome.LOST)
    assert decide(replace(says_that_a_peer_is_gone, before=2, soon=True)) == ends(SessionOutcome.LOST)
    assert decide(facts("ab", "ab", "ab", exits=exits, before=2, soon=True)) == ends(SessionOutcome.REFUSED)


@pytest.mark.parametrize(
    ("exits", "gave_up", "outcome", "blamed"),
    [
        ({"b": -6, "c": 1, "a": -9}, "", SessionOutcome.LOST, ""),
        ({"b": -6, "c": -6}, "", SessionOutcome.LOST, "b"),
        ({"b": -6, "c": 1}, "c", SessionOutcome.LOST, "b"),
        ({"c": 1, "b": -6}, "c", SessionOutcome.LOST, "b"),
        ({"b": -6, "c": 1}, "", SessionOutcome.FAILED, "c"),
        ({"b": 1, "c": -6}, "", SessionOutcome.FAILED, "b"),
        ({"b": 1, "c": -6, "a": 1}, "a", SessionOutcome.FAILED, "b"),
        ({"b": 1, "c": 1}, "c", SessionOutcome.FAILED, "bc"),
        ({"a": 0, "b": 1}, "b", SessionOutcome.EARLY_EXIT, "b"),
        ({"b": 1, "c": -6}, "", SessionOutcome.REFUSED, ""),
    ],
)
def test_who_failed_for_the_sake_of_another_is_not_to_blame(
    exits: dict[str, int], gave_up: str, outcome: SessionOutcome, blamed: str
) -> None:
    assert to_blame(exits, gave_up, outcome) == set(blamed)


def test_those_that_are_left_tell_where_they_stand_unless_one_was_killed_from_outside() -> None:
    assert decide(facts("ab", "ab", "ab", exits={"b": 1}, waited=True)).stacks
    assert decide(facts("ab", "ab", "ab", exits={"b": -6}, waited=True)).stacks, "its NCCL or Gloo gave up a peer"
    assert not decide(facts("ab", "ab", "ab", exits={"b": -9})).stacks


@pytest.mark.parametrize(
    ("exits", "more", "outcome"),
    [
        ({"a": 1, "b": 1, "c": 1}, {}, SessionOutcome.REFUSED),
        ({"a": 1, "b": -6}, {"ended": "c"}, SessionOutcome.REFUSED),
        ({"a": 1, "b": 1, "c": 1}, {"before": 0}, SessionOutcome.FAILED),
        ({"a": 1, "b": 1, "c": 1}, {"soon": False}, SessionOutcome.FAILED),
        ({"a": 0, "b": 1, "c": 1}, {}, SessionOutcome.EARLY_EXIT),
        ({"a": 1, "b": -9, "c": 1}, {}, SessionOutcome.LOST),
    ],
)
def test_a_size_is_refused_where_all_fail_soon_and_another_had_worked(
    exits: dict[str, int], more: dict[str, Any], outcome: SessionOutcome
) -> None:
    assert decide(facts("abc", "abc", "abc", exits=exits, **{"before": 2, "soon": True} | more)) == ends(outcome)


def test_ranks_end_one_after_the_other() -> None:
    assert decide(facts("abc", "ab", "ab", exits={"a": 0})) == Decision(SessionState.FINISHING)
    assert decide(facts("abc", "ab", "ab", exits={"a": 0, "b": 0})) == ends(SessionOutcome.SUCCEEDED)


def test_one_that_ends_while_others_need_it_is_an_early_exit() -> None:
    assert decide(facts("ab", "ab", "ab", exits={"a": 0, "b": 1})) == ends(SessionOutcome.EARLY_EXIT)
    for others in ({"b": 1, "c": -6}, {"c": -6, "b": 1}):
        both = facts("abc", "abc", "abc", exits={"a": 0, **others}, gave_up=frozenset("b"))
        assert decide(both) == ends(SessionOutcome.EARLY_EXIT)


@given(
    listed=st.sets(st.sampled_from("abc"), min_size=1),
    members=st.sets(st.sampled_from("abc"), min_size=1),
    begun=st.sets(st.sampled_from("abc")),
    able=st.sets(st.sampled_from("abc")),
    ended=st.sets(st.sampled_from("abc")),
    codes=st.dictionaries(st.sampled_from("abc"), st.sampled_from([0, 1, -9, -6])),
    interrupted=st.booleans(),
    waited=st.booleans(),
)
def test_nobody_begins_while_somebody_of_the_last_world_runs(
    *,
    listed: set[str],
    members: set[str],
    begun: set[str],
    able: set[str],
    ended: set[str],
    codes: dict[str, int],
    interrupted: bool,
    waited: bool,
) -> None:
    exits = {rank: code for rank, code in codes.items() if rank in members}
    now = facts(
        "".join(sorted(listed)),
        "".join(sorted(members)),
        "".join(begun),
        able="".join(able),
        ended="".join(ended),
        exits=exits,
        interrupted=interrupted,
        waited=waited,
    )
    decision = decide(now)
    over = now.ended >= set(members)
    assert over or not decision.form
    assert over == bool(decision.form or decision.outcome)
    assert set(decision.form) <= listed & able
    assert not (decision.interrupt and any(exits.values()))
