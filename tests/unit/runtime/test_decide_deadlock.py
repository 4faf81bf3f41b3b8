"""Ranks that wait for each other for good: found by two inquiries, long before a standstill is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.deadlock import is_deadlock
from elastic_runtime.launcher.decision.decide import decide
from elastic_runtime.launcher.decision.facts import (
    AskRanks,
    Clocks,
    CommitFact,
    Decision,
    Ending,
    EndStandstill,
    Facts,
    Finish,
    Inquiry,
    RankStanding,
    Stall,
)
from elastic_runtime.launcher.standstills import Standstills
from elastic_runtime.protocol.rank_link import Standing
from elastic_runtime.run.waits import ANSWER, DEADLOCK, DEADLOCK_AGAIN
from tests.unit.runtime.decide_bench import NOW, SETTLED, A, B, C, facts, session, settings
from tests.unit.runtime.test_decide_standstill import ranks

COMMITS: dict[str, object] = {"commits": 21, "in_commit": True}
"""A rank waits in its next commit, and the others in the collective after that which it has begun last."""
SKIPS: dict[str, object] = {"collectives": 41, "beside": 6}
"""A rank skips a collective of a group of its own making, and has begun the next one of the usual group."""
ODD = ranks(r1=COMMITS | {"collectives": 39})
FEW = ranks(r0=COMMITS, r1=COMMITS, r2={"collectives": 41})
AT_WORK: dict[str, object] = {"waits": False, "place": "data.py:7"}


def known(waited: float, found: list[RankStanding] | None = None, **more: object) -> Facts:
    """So many seconds after the last commit; asked three seconds ago."""
    inquiry = None if found is None else Inquiry(NOW - 3.0, tuple(found), 20, quiet=True, early=True, repeated=True)
    usual = facts(
        3, A, B, C, session=session(SETTLED, "a", "b", "c"), trained=True,
        commits=CommitFact(NOW - waited, 1.0), inquiry=inquiry,
    )  # fmt: skip
    return replace(usual, **more)  # type: ignore[arg-type]  # each test names fields of the right type


def decided(known: Facts, **recovery: object) -> Decision:
    return decide(known, Clocks(launched=0.0), settings(**recovery), NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "at_fault"),
    [
        (ODD, ("b",)),
        (FEW, ("c",)),
        (ranks(2, r1=COMMITS | {"collectives": 39}), ()),
        (ranks(r1=COMMITS, r0={"beside": 1}, r2={"beside": 1}), ("b",)),
        (
            [
                replace(each, blocked=True)
                for each in ranks(r1={"collectives": 41, "beside": 6}, r0={"beside": 7}, r2={"beside": 7})
            ],
            ("b",),
        ),
        ([replace(each, blocked=True) for each in ranks(r1={"collectives": 38})], ("b",)),
    ],
    ids=[
        "leaves-the-loop-early",
        "calls-one-more",
        "of-two-nobody-knows-who",
        "skips-one-of-another-group-before-a-commit",
        "skips-one-of-another-group",
        "waits-under-another-name",
    ],
)
def test_ranks_that_wait_for_each_other_are_told_at_once(found: list[RankStanding], at_fault: tuple[str, ...]) -> None:
    decision = decided(known(17.0, found))
    (action,) = decision.actions
    assert isinstance(action, EndStandstill)
    assert action.rank_ids == at_fault
    assert action.reason.startswith("no rank has committed for 17 s, and ranks wait for each other at step 20: ")


def test_the_same_again_ends_the_run_with_a_remedy() -> None:
    decision = decided(known(17.0, ODD, stalls=(Stall(20, (1,), ("slot-b",)),)))
    assert decision.actions == (Finish(decision.phase, FailureKind.STANDSTILL),)
    assert "All ranks must call the same collectives" in decision.reason


@pytest.mark.parametrize(
    "found",
    [
        ranks(),
        ranks(r1={"collectives": 41}),
        [replace(each, blocked=True) for each in ranks()],
        [replace(each, blocked=True) for each in ranks(r1={"collectives": None})],
        ranks(r1=COMMITS),
        ranks(r1=COMMITS | {"collectives": 41}),
        ranks(r1=COMMITS | {"collectives": 39, "waits": False}),
        ranks(r1=COMMITS | {"collectives": None}),
        ranks(r0=COMMITS | AT_WORK, r1=COMMITS, r2=COMMITS),
        ranks(r0=AT_WORK | {"collectives": 41}, r1=COMMITS, r2=COMMITS),
        ranks(r1=COMMITS | {"collectives": 39, "commits": 20}),
        ranks(r1={"answered": False, "commits": 0, "collectives": None, "waits": False}),
    ],
    ids=[
        "all-wait-in-one",
        "one-is-ahead-in-a-slow-backward",
        "all-are-blocked-in-one",
        "blocked-and-not-counted",
        "waits-for-others-to-commit",
        "has-begun-one-more-before-its-commit",
        "copies-its-state",
        "not-counted",
        "writes-in-its-commit",
        "is-at-work-and-will-commit",
        "all-have-begun-the-commit",
        "mute",
    ],
)
def test_what_may_go_on_by_itself_is_no_deadlock(found: list[RankStanding]) -> None:
    assert not is_deadlock(found)
    decision = decided(known(17.0, found))
    assert (decision.actions, decision.reason) == ((), "3 ranks train")


ASKS = (AskRanks("", quiet=True, early=True),)


def test_ranks_are_asked_twice() -> None:
    assert decided(known(DEADLOCK)).actions == ()
    assert decided(known(DEADLOCK + 1)).actions == ASKS
    once = Inquiry(NOW - DEADLOCK_AGAIN, tuple(ODD), 20, quiet=True, early=True)
    assert decided(known(17.0, inquiry=once)).actions == ()
    assert decided(known(17.1, inquiry=replace(once, asked=NOW - DEADLOCK_AGAIN - 0.1))).actions == ASKS


def test_ranks_that_need_long_for_a_commit_are_asked_later() -> None:
    assert decided(known(0.0, commits=CommitFact(NOW - 120.0, 60.0))).actions == ()
    assert decided(known(0.0, commits=CommitFact(NOW - 121.0, 60.0))).actions == ASKS


def test_a_world_that_has_never_committed_is_asked_too() -> None:
    first = CommitFact(NOW - 17.0, None, begun=False)
    assert decided(known(17.0, commits=first)).actions == ASKS
    assert isinstance(decided(known(17.0, ODD, commits=first)).actions[0], EndStandstill)


@pytest.mark.parametrize(
    "known",
    [
        known(17.0, ODD, excused=NOW + 60.0),
        known(17.0, ODD, commits=None),
        known(17.0, ODD, session=session(SETTLED, "a", "b", "c", holders=())),
        known(17.0, inquiry=Inquiry(NOW - 3.0, tuple(ODD), 20, quiet=True, repeated=True)),
    ],
    ids=["busy", "no-world", "no-state", "a-standstill-is-judged"],
)
def test_others_are_not_judged(known: Facts) -> None:
    assert decided(known).actions == ()


def test_without_a_limit_nothing_is_asked() -> None:
    assert decided(known(600.0), standstill=0.0).actions == ()


# A rank that has ended its training


def ending(waited: float, found: list[RankStanding] | None = None, *, repeated: bool = True) -> Decision:
    inquiry = None if found is None else Inquiry(NOW - 3.0, tuple(found), 12, quiet=True, early=True, repeated=repeated)
    ended = Ending(((1, 12),), (0, 2), 12)
    told = known(waited, ending=ended, inquiry=inquiry)
    return decide(told, Clocks(launched=0.0, ending_since=NOW - waited), settings(), NOW)


def test_a_rank_that_has_ended_while_others_wait_for_it_ends_the_run() -> None:
    decision = ending(9.0, ranks(r0={"collectives": 41}, r1={"collectives": 40}, r2={"collectives": 41}))
    assert decision.actions == (Finish(decision.phase, FailureKind.EARLY_EXIT),)
    assert decision.reason == (
        "a rank ended while others were still training: rank 1 ended its training at step 12, "
        "and rank 0 waits for it at train.py:20"
    )


def test_a_rank_that_has_ended_while_others_commit_once_more_ends_the_run() -> None:
    decision = ending(9.0, ranks(r0=COMMITS, r2=COMMITS))
    assert decision.actions == (Finish(decision.phase, FailureKind.EARLY_EXIT),)
    assert decision.reason.endswith("rank 1 ended its training at step 12, and rank 0 waits for it at train.py:20")


@pytest.mark.parametrize(
    ("found", "repeated"),
    [
        (ranks(r0=AT_WORK | {"collectives": 41}, r2=AT_WORK), True),
        (ranks(), True),
        (ranks(r0={"collectives": 41}), False),
        (ranks(r0={"collectives": None}, r1={"collectives": None}, r2={"collectives": None}), True),
        (ranks(r0=COMMITS | {"commits": 20}), True),
        (ranks(r0=COMMITS | AT_WORK), True),
        (ranks(r0=COMMITS, r1={"answered": False, "commits": 0}), True),
    ],
    ids=[
        "they-evaluate",
        "they-wait-for-something-else",
        "once",
        "not-counted",
        "in-the-commit-that-was-its-last",
        "writes-in-its-commit",
        "has-not-answered",
    ],
)
def test_ranks_that_may_end_later_have_their_time(found: list[RankStanding], repeated: bool) -> None:
    assert ending(9.0, found, repeated=repeated).actions == ()


def test_ranks_are_asked_while_one_has_ended() -> None:
    assert ending(DEADLOCK_AGAIN).actions == ()
    assert [type(each) for each in ending(DEADLOCK_AGAIN + 1).actions] == [AskRanks]


# What was answered


def test_answers_are_repeated_if_nothing_but_time_has_changed() -> None:
    now = [0.0]
    standstills = Standstills(lambda: now[0])
    world = {"worker-0.0.0": 0, "worker-1.0.0": 1}

    def asked(*answers: Standing) -> Inquiry:
        now[0] += ANSWER
        standstills.asks(1, quiet=True, early=True)
        for rank_id, answer in zip(world, answers, strict=False):
            standstills.said(rank_id, answer)
        found = standstills.inquiry(world)
        assert found is not None
        return found

    one, two = Standing(1, 4, 1, idle=3.0, waits=True), Standing(1, 5, 1, waits=True)
    assert not asked(one, two).repeated
    assert asked(replace(one, idle=13.0), two).repeated
    assert not asked(one, replace(two, collectives=6)).repeated
    assert not asked(one).repeated
    assert not asked(one).repeated, "one has not answered"
    assert asked(one).early
