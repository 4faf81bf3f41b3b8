"""The launcher's side of torch.distributed: what ranks hear when others come, go and are lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionOutcome, SessionState, Stage
from elastic_runtime.engines.torch import messages, session
from elastic_runtime.engines.torch.messages import (
    AgreeAt,
    AgreementWanted,
    AllDone,
    AnotherWanted,
    Connected,
    Done,
    EnterWorld,
    Hung,
    LeftOut,
    PeerLost,
    Prepare,
    Prepared,
    RankWord,
    ReadyForWorld,
    StateLost,
    StoreAnswer,
    StoreAsk,
    Synced,
    WorldBroken,
)
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.decision.decide import decide, observe
from elastic_runtime.launcher.decision.facts import Facts, Finish
from tests.unit.runtime.decide_bench import FRESH, NOW, USUAL
from tests.unit.runtime.worlds_bench import Bench, scene, turns


@scene
async def test_a_rank_hears_who_it_is_and_how_it_reaches_others(bench: Bench) -> None:
    bench.session.open(("a",), 1)
    await turns()
    environment = bench.workers.environments["a"]
    assert (environment[messages.NAME], environment["GLOO_SOCKET_IFNAME"]) == ("a", "eth-a")


@scene
async def test_newcomers_are_waited_for_while_the_others_train(bench: Bench) -> None:
    session = bench.session
    session.open(("a",), 1)
    await bench.form(1, "a")
    assert (session.fact.state, session.fact.holders, bench.worlds) == (SessionState.SETTLED, ("a",), [["a"]])
    session.list_ranks(("a", "b"), 1)
    await asyncio.sleep(0)
    assert bench.heard("a") == []
    bench.say("b", ReadyForWorld())
    assert bench.heard("a") == [AnotherWanted(1, 1), Prepare(1, 1)]
    assert bench.heard("b") == []
    bench.say("a", ReadyForWorld())
    assert (bench.heard("a"), bench.heard("b")) == ([EnterWorld(2, 0, 2, alike=1)], [EnterWorld(2, 1, 2, alike=1)])
    assert (session.fact.state, session.fact.holders) == (SessionState.FORMING, ("a",))
    bench.say("a", Connected(2), Synced(2))
    bench.say("b", Connected(2))
    assert session.fact.holders == ("a",), "b has not heard of the state"
    bench.say("b", Synced(2))
    assert (session.fact.state, session.fact.holders) == (SessionState.SETTLED, ("a", "b"))
    assert bench.worlds == [["a"], ["a", "b"]]


@scene
async def test_members_hear_again_where_another_one_is_to_leave(bench: Bench) -> None:
    bench.session.open(("a", "b", "c"), 1)
    await bench.form(1, "a", "b", "c")
    bench.session.list_ranks(("a", "b"), 1)
    bench.session.list_ranks(("b",), 1)
    assert bench.heard("a") == [
        AnotherWanted(1, 1, leaving=(2,)),
        Prepare(1, 1),
        AnotherWanted(1, 2, leaving=(0, 2)),
    ]


@scene
async def test_newcomers_are_named_until_they_are_ready_and_stopped_on_request(bench: Bench) -> None:
    bench.session.open(("a",), 1)
    await bench.form(1, "a")
    bench.session.list_ranks(("a", "b"), 1)
    await turns()
    assert (bench.session.fact.starting, bench.session.fact.prepares) == (("b",), True)
    bench.session.reform()
    assert (bench.workers.stopped, bench.session.fact.starting) == (["b"], ())
    assert bench.session.fact.state is SessionState.SETTLED


@scene
async def test_who_is_replaced_leaves_when_the_newcomer_is_ready(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.session.list_ranks(("a", "c"), 1)
    await turns()
    assert bench.heard("a") == [], "a world of a alone would last for a moment"
    bench.say("c", ReadyForWorld())
    assert bench.heard("a") == [AnotherWanted(1, 1, leaving=(1,)), Prepare(1, 1)]


def test_who_is_replaced_waits_for_a_newcomer_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "NEWCOMERS", 0.0)

    @scene
    async def play(bench: Bench) -> None:
        bench.session.open(("a", "b"), 1)
        await bench.form(1, "a", "b")
        bench.session.list_ranks(("a", "c"), 1)
        await turns()
        assert bench.heard("a") == [AnotherWanted(1, 1, leaving=(1,)), Prepare(1, 1)]
        for rank_id in ("a", "b"):
            bench.say(rank_id, ReadyForWorld())
        assert bench.heard("a") == [EnterWorld(2, 0, 1, alike=1)]

    play()


@scene
async def test_all_agree_at_the_first_commit_that_none_has_begun(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("b", AgreementWanted(1))
    bench.say("a", AgreementWanted(1))
    assert bench.heard("a") == bench.heard("b") == [Prepare(1, 1)], "one for both"
    bench.say("a", Prepared(1, 1, begun=7))
    assert bench.heard("a") == [], "b may have begun more"
    bench.say("b", Prepared(1, 1, begun=8))
    assert bench.heard("a") == bench.heard("b") == [AgreeAt(1, 1, commit=9)]
    bench.say("b", Prepared(1, 1, begun=9))
    assert bench.heard("a") == [], "it is settled"
    bench.say("a", AgreementWanted(1))
    bench.say("b", Prepared(1, 1, begun=9), Prepared(1, 2, begun=9))
    assert bench.heard("b") == [Prepare(1, 2)], "a has not answered this one"


@scene
async def test_a_world_that_breaks_while_it_settles_on_a_commit_agrees_on_none(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("a", AgreementWanted(1), Prepared(1, 1, begun=3))
    await bench.end("b", -9)
    assert bench.heard("a") == [Prepare(1, 1), WorldBroken(1)]
    bench.say("a", ReadyForWorld(), AgreementWanted(1))
    assert bench.heard("a") == [EnterWorld(2, 0, 1)], "a word of the world before is left out"


@scene
async def test_a_world_that_is_broken_up_forms_anew_of_the_same_ranks(bench: Bench) -> None:
    session = bench.session
    session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    session.break_up()
    assert session.fact.state is SessionState.FORMING
    assert bench.heard("a") == bench.heard("b") == [WorldBroken(1)]
    session.break_up()
    assert bench.heard("a") == [], "it is broken already"
    for rank_id in ("a", "b"):
        bench.say(rank_id, ReadyForWorld())
    assert bench.heard("a") == [EnterWorld(2, 0, 2, in_vain=1)]
    assert (session.fact.holders, bench.exits) == (("a", "b"), [])


@scene
async def test_who_has_a_part_of_the_state_stays_until_it_could_give_it(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.session.list_ranks(("b",), 1)
    assert bench.heard("a") == bench.heard("b") == [AnotherWanted(1, 1, leaving=(0,)), Prepare(1, 1)]
    bench.say("a", ReadyForWorld(part=True))
    bench.say("b", ReadyForWorld())
    for rank, rank_id in enumerate("ab"):
        assert bench.heard(rank_id) == [EnterWorld(2, rank, 2, alike=2)]
        bench.say(rank_id, Connected(2), Synced(2))
    assert bench.heard("a") == bench.heard("b") == [AnotherWanted(2, 2, leaving=(0,)), Prepare(2, 1)]
    bench.say("a", ReadyForWorld())
    bench.say("b", ReadyForWorld())
    assert bench.heard("b") == [EnterWorld(3, 0, 1, alike=1)]
    await turns()
    assert bench.heard("a") == [LeftOut()]


@scene
async def test_worlds_that_break_with_all_their_ranks_alive_are_counted_until_a_commit(bench: Bench) -> None:
    bench.session.open(("a",), 1)
    await bench.form(1, "a")
    for world, in_vain in ((1, 1), (2, 2)):
        bench.say("a", PeerLost(world), ReadyForWorld())
        assert bench.heard("a")[-1] == EnterWorld(world + 1, 0, 1, in_vain=in_vain)
        bench.say("a", Connected(world + 1), Synced(world + 1))
    bench.session.committed()
    bench.say("a", PeerLost(3), ReadyForWorld())
    assert bench.heard("a")[-1] == EnterWorld(4, 0, 1, in_vain=1)


@scene
async def test_who_is_listed_no_more_leaves_at_a_commit(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.session.list_ranks(("b",), 1)
    assert bench.heard("a") == bench.heard("b") == [AnotherWanted(1, 1, leaving=(0,)), Prepare(1, 1)]
    bench.say("a", ReadyForWorld())
    assert bench.heard("a") == []
    bench.say("b", ReadyForWorld())
    assert (bench.heard("a"), bench.heard("b")) == ([LeftOut()], [EnterWorld(2, 0, 1, alike=1)])
    await bench.end("a", 0)
    assert bench.exits == [("a", 0, True)]
    assert bench.session.fact.outcome is None


@scene
async def test_a_world_that_is_over_before_anybody_has_a_state_says_so(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await asyncio.sleep(0)
    for rank_id in ("a", "b"):
        bench.say(rank_id, ReadyForWorld())
    for rank_id in ("a", "b"):
        bench.say(rank_id, Connected(1))
    assert bench.session.fact.stage is Stage.CONNECTING
    await bench.end("b", 1)
    fact = bench.session.fact
    assert (fact.state, fact.stage, fact.holders) == (SessionState.FORMING, Stage.RETURNING, None)
    assert fact.detail == "rank 1 (b) ended with code 1"


@scene
async def test_a_loss_is_told_to_those_who_have_not_noticed(bench: Bench) -> None:
    bench.session.open(("a", "b", "c"), 1)
    await bench.form(1, "a", "b", "c")
    bench.say("b", ReadyForWorld())  # It has noticed.
    await bench.end("a", -9)
    assert (bench.heard("b"), bench.heard("c")) == ([], [WorldBroken(1)])
    assert bench.session.fact.state is SessionState.FORMING
    bench.say("c", ReadyForWorld())
    assert (bench.heard("b"), bench.heard("c")) == ([EnterWorld(2, 0, 2)], [EnterWorld(2, 1, 2)])
    assert bench.exits == [("a", -9, False)]


@scene
async def test_a_rank_that_cannot_reach_another_breaks_the_world_for_all(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("a", PeerLost(1))
    assert bench.heard("b") == [WorldBroken(1)]


@scene
async def test_a_state_of_which_parts_are_lost_ends_the_session(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("a", StateLost(1))
    fact = bench.session.fact
    assert (fact.state, fact.outcome) == (SessionState.ENDED, SessionOutcome.LOST)
    assert fact.detail == "ranks ended together with those that kept copies of their parts"


@scene
async def test_words_of_another_world_or_of_strangers_are_left_out(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("a", PeerLost(2), PeerLost(0), Done(7), StoreAsk(3, 1, "set", ("k",)))
    bench.say("z", ReadyForWorld(), PeerLost(1))
    bench.session.list_ranks(("a", "b", "c"), 1)
    await asyncio.sleep(0)
    bench.say("c", PeerLost(1), Synced(1), StoreAsk(1, 1, "set", ("k",)))
    assert not bench.workers.told
    assert bench.session.fact.state is SessionState.SETTLED
    with pytest.raises(InvalidDocument):
        bench.session.heard("a", {"type": "enter_world", "world": 1, "rank": 0, "size": 1})


@scene
async def test_ranks_find_each_other_in_the_worlds_store(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("a", StoreAsk(1, 5, "get", ("k",)))
    bench.say("b", StoreAsk(1, 6, "set", ("k",), "MQ=="))
    assert (bench.heard("a"), bench.heard("b")) == ([StoreAnswer(5, "MQ==")], [StoreAnswer(6)])
    bench.say("a", ReadyForWorld())
    await bench.form(2, "a", "b", alike=2)
    bench.say("a", StoreAsk(2, 7, "check", ("k",)))
    assert bench.heard("a") == [StoreAnswer(7, number=0)]


async def end_together(bench: Bench) -> None:
    """Two ranks train in the first world, and all have ended their training."""
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("a", Done(1))
    bench.say("b", Done(1))


@scene
async def test_the_end_is_when_all_are_done(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.say("a", Done(1))
    assert bench.heard("a") == []
    bench.say("b", Done(1))
    assert bench.heard("a") == bench.heard("b") == [AllDone(1)]
    assert (bench.session.fact.state, bench.session.fact.done) == (SessionState.FINISHING, True)
    await bench.end("a", 0)
    assert (bench.session.fact.state, bench.session.fact.done) == (SessionState.FINISHING, False)
    await bench.end("b", 0)
    assert bench.session.fact.outcome is SessionOutcome.SUCCEEDED


@scene
async def test_all_may_evaluate_for_longer_than_the_first_that_ends_is_followed(bench: Bench) -> None:
    await end_together(bench)
    done = Facts(2, (), bench.session.fact, trained=True)
    clocks = observe(FRESH, done, USUAL, NOW)
    assert decide(done, clocks, USUAL, NOW + 3600).actions == ()
    await bench.end("a", 0)
    ends = replace(done, session=bench.session.fact)
    clocks = observe(clocks, ends, USUAL, NOW + 3600)
    assert decide(ends, clocks, USUAL, NOW + 3600 + USUAL.recovery.max_wait).actions == ()
    [action] = decide(ends, clocks, USUAL, NOW + 3601 + USUAL.recovery.max_wait).actions
    assert isinstance(action, Finish)


@pytest.mark.parametrize(
    ("words", "again"), [((Synced(1),), True), ((ReadyForWorld(),), True), ((PeerLost(1), ReadyForWorld()), False)]
)
def test_a_training_after_the_end_is_told_of_but_no_loss_at_the_end(words: tuple[RankWord, ...], again: bool) -> None:
    @scene
    async def play(bench: Bench) -> None:
        await end_together(bench)
        assert not bench.session.fact.again
        bench.say("a", *words)
        assert bench.session.fact.again is again

    play()


@scene
async def test_all_have_not_ended_their_training_where_one_wants_another_world(bench: Bench) -> None:
    await end_together(bench)
    assert bench.session.fact.done
    bench.say("a", PeerLost(1), ReadyForWorld())
    assert (bench.session.fact.state, bench.session.fact.done) == (SessionState.FINISHING, False)


@scene
async def test_a_world_that_is_given_up_loses_those_that_did_not_come(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await asyncio.sleep(0)
    for rank_id in ("a", "b"):
        bench.say(rank_id, ReadyForWorld())
    assert bench.heard("a") == [EnterWorld(1, 0, 2)]
    bench.say("a", Connected(1), Synced(1))
    bench.session.reform()
    assert bench.workers.stopped == ["b"]
    assert bench.session.fact.stage is Stage.RETURNING
    assert not bench.session.fact.given_up, "who is connected has as long again to leave it"
    assert bench.heard("a") == [WorldBroken(1)]
    await bench.end("b", -15)
    assert bench.exits == [("b", -15, False)], "or it would be waited for again and again"
    bench.say("a", ReadyForWorld())
    assert bench.session.fact.state is SessionState.FORMING


@scene
async def test_a_member_that_does_not_leave_a_broken_world_is_stopped(bench: Bench) -> None:
    bench.session.open(("a", "b", "c"), 1)
    await bench.form(1, "a", "b", "c")
    await bench.end("c", -9)
    bench.say("a", ReadyForWorld())
    assert (bench.session.fact.stage, bench.session.fact.waiting) == (Stage.RETURNING, ("a",))
    bench.session.reform()  # b is connected, and asleep.
    assert bench.workers.stopped == ["b"]
    assert bench.session.fact.given_up
    await bench.end("b", -9)
    assert bench.exits[-1] == ("b", -9, False)
    assert EnterWorld(2, 0, 1) in bench.heard("a")


@scene
async def test_who_has_not_come_back_as_the_session_is_closed_says_where_it_stands(bench: Bench) -> None:
    bench.session.open(("a", "b", "c"), 1)
    await bench.form(1, "a", "b", "c")
    await bench.end("c", -9)
    bench.say("a", ReadyForWorld())
    await bench.session.close(0.0)
    assert bench.workers.dumped == ["b"]


@scene
async def test_a_member_that_says_that_it_cannot_leave_is_stopped_at_once(bench: Bench) -> None:
    bench.session.open(("a", "b", "c"), 1)
    await bench.form(1, "a", "b", "c")
    await bench.end("c", -9)
    bench.say("b", Hung(1))
    bench.say("b", Hung(1))
    assert bench.workers.stopped == ["b"]
    assert not bench.session.fact.hung, "a can go on"
    await bench.end("b", -9)
    assert bench.exits[-1] == ("b", -9, False)
    bench.say("a", ReadyForWorld())
    assert EnterWorld(2, 0, 1) in bench.heard("a")


@scene
async def test_the_last_that_have_the_state_and_cannot_leave_are_told_of_not_stopped(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    await bench.end("b", -9)
    bench.say("a", Hung(2))
    assert not bench.session.fact.hung, "of another world"
    bench.say("a", Hung(1))
    assert bench.session.fact.hung
    assert bench.workers.stopped == []
    bench.say("a", ReadyForWorld())
    assert not bench.session.fact.hung, "it could, after all"


@scene
async def test_the_last_that_have_the_state_are_not_stopped_for_being_late(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    await bench.end("b", -9)
    bench.session.reform()
    assert bench.workers.stopped == []
    assert (bench.session.fact.holders, bench.session.fact.waiting) == (("a",), ())


@scene
async def test_who_has_the_state_and_is_listed_no_more_waits_to_be_listed_again(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.session.list_ranks(("a", "c"), 1)
    await asyncio.sleep(0)
    bench.say("c", ReadyForWorld())
    bench.heard("b")
    await bench.end("a", -9)
    bench.say("b", ReadyForWorld())
    assert bench.session.fact.state is SessionState.WAITING
    bench.session.list_ranks(("b", "c"), 1)
    assert bench.heard("b")[-1] == EnterWorld(2, 0, 2)


@scene
async def test_a_start_that_fails_says_who_failed(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await asyncio.sleep(0)
    await bench.end("b", 7)
    fact = bench.session.fact
    assert (fact.outcome, fact.holders) == (SessionOutcome.FAILED, None)
    assert "(b) ended with code 7" in fact.detail
