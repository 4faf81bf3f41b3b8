"""Ranks that do not do the same: what each tells, the comparison, and what the launcher decides."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import FailureKind, InvalidDocument
from elastic_runtime.launcher.decision.decide import decide
from elastic_runtime.launcher.decision.difference import RankTally, compare
from elastic_runtime.launcher.decision.facts import Clocks, Decision, Difference, EndDifference, Finish
from elastic_runtime.launcher.decision.first_apart import first_apart
from elastic_runtime.launcher.differences import MAX_OPEN, Differences
from elastic_runtime.protocol.plausible import check_rank
from elastic_runtime.protocol.rank_link import decode_rank_message, encode_rank_message
from elastic_runtime.protocol.tallies import MAX_KINDS, MAX_TAIL, Tally
from elastic_runtime.script.tally import EVERY, MAX_GROUPS, OTHERS, Counts, Stride
from tests.unit.runtime.decide_bench import NOW, SETTLED, A, B, C, facts, session, settings
from tests.unit.runtime.test_standing import Rank

RANKS = {"worker-0.0.0": 0, "worker-1.0.0": 1, "worker-2.0.0": 2}
KINDS = {"all_reduce float32[8]": 30, "barrier": 10}


def tallies(count: int = 3, **changed: dict[str, object]) -> list[RankTally]:
    """``r1={…}``: what rank 1 has begun instead."""
    usual = Tally(20, step=20, collectives=40, order=7, steps=19, kinds=KINDS)
    told = [replace(usual, **changed.get(f"r{rank}", {})) for rank in range(count)]  # type: ignore[arg-type]
    return [RankTally(rank, f"w{rank}", f"s{rank}", each) for rank, each in enumerate(told)]


MORE: dict[str, object] = {"collectives": 41, "order": 8, "kinds": {**KINDS, "barrier": 11}}
OTHER_KINDS = {"all_reduce float32[8]": 29, "broadcast int64[1]": 1, "barrier": 10}


@pytest.mark.parametrize(
    ("told", "at_fault", "what", "why"),
    [
        (
            tallies(r1=MORE),
            (1,),
            "collectives",
            "by commit 20 of this world, rank 1 (w1) has begun 41 collectives, and rank 0 40: 11 and 10 of barrier",
        ),
        (tallies(r0=MORE), (0,), "collectives", "rank 0 (w0) has begun 41 collectives, and rank 1 40"),
        (
            tallies(r2={"order": 8, "kinds": OTHER_KINDS}),
            (2,),
            "order",
            "rank 2 (w2) has begun other collectives than rank 0, or in another order: "
            "29 and 30 of all_reduce float32[8], 1 and 0 of broadcast int64[1]",
        ),
        (tallies(r2={"order": 8}), (2,), "order", "other collectives than rank 0, or in another order"),
        (tallies(r1={"step": 19}), (1,), "step", "rank 1 (w1) is at step 19, and rank 0 at step 20"),
        (tallies(r1={"steps": 18}), (1,), "steps", "has made 18 steps of its optimizers, and rank 0 19"),
        (tallies(2, r1=MORE), (), "collectives", "rank 1 (w1) has begun 41 collectives, and rank 0 40"),
        (tallies(5, r1=MORE, r3=MORE), (1, 3), "collectives", "rank 3 (w3) has begun 41 collectives"),
    ],
)
def test_ranks_that_differ_from_most_are_at_fault(
    told: list[RankTally], at_fault: tuple[int, ...], what: str, why: str
) -> None:
    found = compare(told)
    assert found is not None
    assert (found.ranks, found.what) == (at_fault, what)
    assert found.rank_ids == tuple(f"w{rank}" for rank in at_fault)
    assert why in found.why


@pytest.mark.parametrize(
    "told",
    [
        tallies(),
        tallies(1),
        tallies(r1={"kinds": {}}),
        tallies(r1={"collectives": None, "order": None}),
        tallies(r1={"step": None, "steps": None, "collectives": None, "order": None}),
    ],
    ids=["same", "alone", "kinds-are-for-people", "not-counted", "with-join"],
)
def test_ranks_that_do_the_same_as_far_as_is_known_are_left_alone(told: list[RankTally]) -> None:
    assert compare(told) is None


def tally(commit: int, **what: object) -> Tally:
    return replace(Tally(commit, commit, 2 * commit, None, commit - 1), **what)  # type: ignore[arg-type]


def all_tell(differences: Differences, commit: int, *, more: int = 0) -> None:
    for rank_id in RANKS:
        extra = more if rank_id == "worker-1.0.0" else 0
        differences.told(rank_id, tally(commit, collectives=2 * commit + extra), RANKS)


def test_a_difference_counts_if_it_is_there_at_the_next_commit_too() -> None:
    differences = Differences()
    all_tell(differences, 1, more=1)
    assert differences.present is None
    all_tell(differences, 2)
    all_tell(differences, 4, more=1)
    assert differences.present is None, "it was gone in between"
    all_tell(differences, 8, more=1)
    assert differences.present is not None
    assert differences.present.slots == ("worker-1.0",)


def test_commits_that_not_all_tell_of_are_not_compared_and_not_kept() -> None:
    differences = Differences()
    for commit in range(1, 1000):
        differences.told("worker-0.0.0", tally(commit), RANKS)
        differences.told("worker-1.0.0", tally(commit, collectives=0), RANKS)
        differences.told("worker-9.0.0", tally(commit, collectives=0), RANKS)
    assert differences.present is None
    assert len(differences._open) <= MAX_OPEN


def test_a_new_world_forgets_what_was_told_in_the_last_but_not_what_was_done_about_it() -> None:
    differences = Differences()
    all_tell(differences, 1, more=1)
    differences.new_world()
    all_tell(differences, 1, more=1)
    assert differences.present is None
    all_tell(differences, 2, more=1)
    found = differences.present
    differences.acts()
    assert (differences.present, differences.past) == (None, (found,))


# The first that differs


class Begun:
    """A rank that begins one collective for each letter and commits at each full stop; its kinds are told from 1 on."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.counts.ordered = True
        self._commits = 0

    def does(self, what: str, step: int = 0) -> Tally:
        """And tells of the commit after it. At full stops inside, commits that are not told of."""
        for each in what:
            if each == ".":
                self._commits += 1
                self.counts.committed()
            elif each.isupper():
                self.counts.begins("side", each.lower())
            else:
                self.counts.begins("", each)
        self._commits += 1
        told = replace(self.counts.tally(self._commits, step or self._commits, ()), collectives=self.counts.begun)
        self.counts.committed()
        return told


def words(agreed: Sequence[tuple[str, int]], mine: str, theirs: str, step: int = 0) -> str:
    """Return what is told of two ranks that have done such things before, and then differ."""
    one, two, known = Begun(), Begun(), Tally(0)
    for what, at in agreed:
        known = one.does(what, at)
        assert two.does(what, at) == known
    return first_apart(one.does(mine, step), two.does(theirs, step), known, "rank 0")


@pytest.mark.parametrize(
    ("agreed", "mine", "theirs", "step", "told"),
    [
        ([], "aab", "aaa", 0, "it began b where rank 0 began a, as collective 3 of commit 1 of this world"),
        ([("ab.ab", 10)], "ab", "ba", 11, "it began a where rank 0 began b, as collective 1 of step 11"),
        ([("ab", 10)], "ab.aab", "ab.ab", 12, "it began a where rank 0 began b, as collective 2 of step 12"),
        ([("ab", 10)], "abb", "ab", 11, "it began b where rank 0 committed, as collective 3 of step 11"),
        ([("ab", 10)], "a", "ab", 11, "it committed where rank 0 began b, as collective 2 of step 11"),
        (
            [("ab", 10)],
            "ab.ac",
            "ab.ab",
            14,
            "it began c where rank 0 began b, as collective 2 of commit 3 of this world",
        ),
        (
            [("aA", 10)],
            "aABa",
            "aaAA",
            11,
            "it began b in group side where rank 0 began a in group side, as collective 2 of step 11",
        ),
        ([("ab", 10)], "aAb", "Aab", 11, ""),
        ([("ab", 10)], "a" * MAX_TAIL + "b", "a" * MAX_TAIL + "c", 11, ""),
        ([], "a" * MAX_TAIL, "a" * MAX_TAIL + "b", 0, ""),
        ([], "".join(map(chr, range(0x4E00, 0x4E00 + MAX_KINDS))) + "a", "", 0, "it began 一 where rank 0 committed"),
    ],
)
def test_the_first_that_differs_is_named(
    agreed: list[tuple[str, int]], mine: str, theirs: str, step: int, told: str
) -> None:
    found = words(agreed, mine, theirs, step)
    assert found.startswith(told) if told else not found


@given(st.lists(st.text("ab.", max_size=8), max_size=4), st.text("abA.", max_size=12), st.text("abA.", max_size=12))
def test_ranks_are_told_apart_by_the_first_that_differs_or_not_at_all(agreed: list[str], one: str, two: str) -> None:
    one, two = (each + "." * (max(one.count("."), two.count(".")) - each.count(".")) for each in (one, two))
    found = words([(what, 0) for what in agreed], one, two)

    def of(group: str, what: str) -> str:
        return "".join(each for each in what if each == "." or each.isupper() == bool(group)) + "."

    assert (not found) == all(of(group, one) == of(group, two) for group in ("", "side"))


def test_it_is_told_as_of_the_commit_at_which_it_was_seen_first() -> None:
    differences, ranks = Differences(), {rank_id: Begun() for rank_id in RANKS}
    for step in range(1, 5):
        for rank_id, rank in ranks.items():
            odd = rank_id == "worker-2.0.0" and step == 3
            differences.told(rank_id, rank.does("aba" if odd else "aab"), RANKS)
    assert differences.present is not None
    assert (differences.present.what, differences.present.step, differences.present.ranks) == ("order", 3, (2,))
    assert differences.present.why == (
        "by commit 3 of this world, rank 2 (worker-2.0.0) has begun other collectives than rank 0, or in another "
        "order: it began b where rank 0 began a, as collective 2 of step 3"
    )


# The decision

FOUND = Difference("collectives", 20, (1,), ("b",), ("slot-b",), "rank 1 (b) has begun 41 collectives, and rank 0 40")
WORLD = session(SETTLED, "a", "b", "c")
NOBODY = replace(FOUND, ranks=(), rank_ids=(), slots=())


def decided(found: Difference, *before: Difference) -> Decision:
    told = facts(3, A, B, C, session=WORLD, trained=True, difference=found, differences=before)
    return decide(told, Clocks(launched=0.0), settings(), NOW)


@pytest.mark.parametrize(("found", "then"), [(FOUND, "it is replaced"), (NOBODY, "all form a new world")])
def test_the_rank_that_differs_is_replaced_alone(found: Difference, then: str) -> None:
    reason = f"the ranks do not do the same: rank 1 (b) has begun 41 collectives, and rank 0 40; {then}"
    assert decided(found).actions == (EndDifference(found, reason),)


@pytest.mark.parametrize(
    "before", [FOUND, replace(FOUND, step=4, ranks=(0,)), replace(FOUND, step=4, slots=("slot-x",))]
)
def test_the_same_rank_ends_the_run_when_it_differs_again(before: Difference) -> None:
    decision = decided(FOUND, before)
    assert [type(each) for each in decision.actions] == [Finish]
    assert decision.actions[0] == Finish(decision.phase, FailureKind.RANKS_DIFFER)
    assert "for the second time: rank 1 (b) has begun 41 collectives, and rank 0 40" in decision.reason


@pytest.mark.parametrize(
    "before", [replace(FOUND, what="order"), replace(FOUND, ranks=(2,), slots=("slot-c",)), NOBODY]
)
def test_another_rank_or_another_difference_is_handled_as_the_first(before: Difference) -> None:
    assert isinstance(decided(FOUND, before).actions[0], EndDifference)


def test_a_user_may_have_ranks_left_alone() -> None:
    told = facts(3, A, B, C, session=WORLD, trained=True, difference=FOUND)
    assert decide(told, Clocks(launched=0.0), settings(compare=False), NOW).actions == ()


# What a rank tells


def told(rank: Rank) -> list[Tally]:
    found = [each for each in rank.told if isinstance(each, Tally)]
    rank.told.clear()
    return found


def test_a_rank_tells_what_it_has_begun() -> None:
    rank = Rank()
    counts, optimizer, probe = rank.ledger.counts, Counts(), Counts()
    counts.total, counts.ordered = lambda: 42, True
    counts.begins("", "all_reduce", "torch.float32", 8)
    counts.begins("", "barrier")
    counts.stepped(optimizer)
    rank.ledger.commits(3, lambda: [optimizer, ["no optimizer"]])
    first = told(rank)[0]
    assert (first.commit, first.step, first.collectives, first.steps) == (1, 3, 42, 0)
    assert first.kinds == {"all_reduce float32[8]": 1, "barrier": 1}
    counts.stepped(optimizer)
    counts.stepped(probe)
    rank.ledger.commits(4, lambda: [optimizer, ["no optimizer"]])
    assert [each.steps for each in told(rank)] == [1], "one rank may train what it does not keep"


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_the_order_is_the_same_only_for_the_same_collectives(first: list[str], second: list[str]) -> None:
    def order(kinds: list[str]) -> int | None:
        counts = Counts()
        counts.ordered = True
        for kind in kinds:
            counts.begins("", kind)
        return counts.tally(1, None, ()).order

    assert (order(first) == order(second)) == (first == second)


def test_a_rank_keeps_few_kinds() -> None:
    counts = Counts()
    for size in range(1000):
        counts.begins("", "all_reduce", "torch.float32", size)
    kinds = counts.tally(1, 1, ()).kinds
    assert len(kinds) == MAX_KINDS
    assert kinds[OTHERS] == 1000 - (MAX_KINDS - 1)


def test_a_rank_keeps_few_groups() -> None:
    counts = Counts()
    for group in range(1000):
        counts.begins(str(group), "barrier")
    assert len(counts._orders) <= MAX_GROUPS + 1
    assert len(counts._tail) + len(counts.tally(1, 1, ()).kinds) <= MAX_TAIL + MAX_KINDS


def test_ranks_that_join_are_not_compared_in_that_world() -> None:
    counts = Counts()
    counts.total = lambda: 1
    counts.may_differ()
    assert counts.tally(5, 5, ()) == Tally(5)
    counts.connected()
    assert counts.tally(1, 5, ()).step == 5


@given(st.floats(0.0005, 30.0), st.floats(0.7, 1.4))
def test_ranks_at_one_pace_tell_of_common_commits_now_and_then(seconds: float, other: float) -> None:
    """Their clocks, and the moments at which they look at them, are not the same."""
    now = [0.0, 0.0]
    strides = Stride(lambda: now[0]), Stride(lambda: now[1])
    common: list[int] = []
    alone = [0, 0]
    for commit in range(1, 20_000):
        now[0], now[1] = commit * seconds, commit * seconds * other
        due = [stride.due(commit) for stride in strides]
        alone = [count + each for count, each in zip(alone, due, strict=True)]
        if all(due):
            common.append(commit)
    gaps = [seconds * (after - before) for before, after in itertools.pairwise(common)]
    assert max(gaps) <= max(8 * EVERY, seconds) * 1.01
    assert max(alone) <= 20_000 * seconds * 1.4 / EVERY + 20


def test_a_tally_passes_the_wire_and_no_other_does() -> None:
    sent = Tally(3, 3, 12, 2**32 - 1, 2, {"all_reduce float32[8]": 12}, 14, "aa.a*")
    assert decode_rank_message(json.loads(encode_rank_message(sent))) == sent
    check_rank(sent)
    for wrong in (
        replace(sent, commit=-1),
        replace(sent, order=2**60),
        replace(sent, marks=4),
        replace(sent, marks=-1),
        replace(sent, tail="a b"),
        replace(sent, tail="a" * (MAX_TAIL + 1), marks=2 * MAX_TAIL),
        replace(sent, kinds={"x" * 101: 1}),
        replace(sent, kinds={"a\nb": 1}),
        replace(sent, kinds={str(each): 1 for each in range(MAX_KINDS + 1)}),
    ):
        with pytest.raises(InvalidDocument):
            check_rank(wrong)
