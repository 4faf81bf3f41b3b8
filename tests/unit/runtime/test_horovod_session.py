"""What is Horovod's own in its session: scripts without a state, ends one after the other, ranks that hang unheard."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionOutcome, SessionState, Stage
from elastic_runtime.engines.exits import LOST, describe
from elastic_runtime.engines.horovod.session import HorovodSession
from elastic_runtime.engines.torch.messages import (
    AllDone,
    AnotherWanted,
    Connected,
    Done,
    EnterWorld,
    LeftOut,
    Offer,
    Offered,
    PeerLost,
    ReadyForWorld,
    Static,
    Synced,
    WorldBroken,
)
from elastic_runtime.engines.torch.session import START_ATTEMPTS
from elastic_runtime.engines.torch.worlds import TOGETHER
from tests.unit.runtime.worlds_bench import Bench, interleaved, turns
from tests.unit.runtime.worlds_bench import scene as any_scene

scene = functools.partial(any_scene, kind=HorovodSession)


async def connect(bench: Bench, world: int, *members: str) -> None:
    """They are in that world, of a script without a state."""
    await turns()
    for rank_id in members:
        bench.say(rank_id, ReadyForWorld())
    for rank_id in members:
        bench.say(rank_id, Connected(world))
        bench.heard(rank_id)


async def come(bench: Bench) -> None:
    """Two ranks come to the first world."""
    bench.session.open(("a", "b"), 1)
    await turns()
    bench.say("a", ReadyForWorld())
    bench.say("b", ReadyForWorld())


async def half_connect(bench: Bench) -> None:
    """Two ranks come to the first world. The second alone has told that it is connected."""
    await come(bench)
    bench.say("b", Connected(1))


@scene
async def test_a_rank_is_started_as_horovod_starts_it(bench: Bench) -> None:
    bench.session.open(("a",), 1)
    await turns()
    assert bench.workers.environments["a"] == {
        "HOROVOD_HOSTNAME": "a",
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "eth-a",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
        "NCCL_SOCKET_IFNAME": "eth-a",
    }


@scene
async def test_ranks_hear_of_each_other_by_exchanges_of_the_present_world(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await turns()
    bench.say("a", ReadyForWorld())
    bench.say("b", ReadyForWorld())
    assert (bench.heard("a"), bench.heard("b")) == ([EnterWorld(1, 0, 2)], [EnterWorld(1, 1, 2)])
    bench.say("a", Offer(1, "global", 0, ("a for b",)))
    bench.say("b", Offer(7, "global", 1, ("of another world",)))
    assert bench.heard("a") == []
    bench.say("b", Offer(1, "global", 1, ("b for a",)))
    assert bench.heard("a") == [Offered(1, "global", 0, ("b for a",))]
    assert bench.heard("b") == [Offered(1, "global", 1, ("a for b",))]


@scene
async def test_a_first_world_that_fails_by_itself_ends_at_once(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await turns()
    await bench.end("b", 3)
    fact = bench.session.fact
    assert (fact.state, fact.outcome) == (SessionState.ENDED, SessionOutcome.FAILED)
    assert fact.detail == "rank 0 (b) ended with code 3"
    await turns()
    assert bench.exits == [("b", 3, False), ("a", -15, True)]


@scene
async def test_a_rank_that_is_killed_before_the_first_world_starts_again_alone(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await turns()
    bench.say("b", ReadyForWorld())
    bench.workers.ends["b"].set_result(LOST)
    await turns()
    assert bench.workers.attempts == [("a", 0), ("b", 0), ("b", 1)]
    assert (bench.exits, bench.over) == ([("b", LOST, False)], [])
    bench.say("a", ReadyForWorld())
    assert bench.heard("a") == []
    await bench.form(1, "a", "b")
    assert bench.worlds == [["a", "b"]]


@pytest.mark.parametrize("worker_is_gone", [True, False])
def test_one_that_cannot_start_again_ends_the_session(*, worker_is_gone: bool) -> None:
    @scene
    async def play(bench: Bench) -> None:
        bench.session.open(("a", "b"), 2)
        await turns()
        bench.workers.gone |= {"b"} if worker_is_gone else set()
        for _ in range(1 if worker_is_gone else START_ATTEMPTS):
            assert bench.session.fact.outcome is None
            bench.workers.ends["b"].set_result(LOST)
            await turns()
        assert bench.session.fact.outcome is SessionOutcome.LOST
        assert bench.over == ["b", "a"]

    play()


@pytest.mark.parametrize(
    ("codes", "outcome", "detail"),
    [
        ((0, 0), SessionOutcome.SUCCEEDED, "rank 0 (a) ended with code 0, rank 1 (b) ended with code 0"),
        ((1, 1), SessionOutcome.FAILED, "rank 0 (a) ended with code 1, rank 1 (b) ended with code 1"),
        ((1, -6), SessionOutcome.FAILED, "rank 0 (a) ended with code 1, rank 1 (b) ended with SIGABRT"),
        ((LOST, LOST), SessionOutcome.LOST, "rank 0 (a) ended with SIGKILL, rank 1 (b) ended with SIGKILL"),
        ((LOST, 1), SessionOutcome.LOST, "rank 0 (a) ended with SIGKILL, rank 1 (b) ended with code 1"),
        ((-6, -6), SessionOutcome.LOST, "rank 0 (a) ended with SIGABRT, rank 1 (b) ended with SIGABRT"),
    ],
)
@pytest.mark.parametrize("has_state", [True, False])
def test_the_end_of_all_ranks(codes: tuple[int, int], outcome: SessionOutcome, detail: str, has_state: bool) -> None:
    @scene
    async def play(bench: Bench) -> None:
        bench.session.open(("a", "b"), 2)
        if has_state:
            await bench.form(1, "a", "b")
        else:
            await connect(bench, 1, "a", "b")
        for rank_id, code in zip("ab", codes, strict=True):
            await bench.end(rank_id, code)
        fact = bench.session.fact
        assert (fact.state, fact.outcome, fact.detail) == (SessionState.ENDED, outcome, detail)

    play()


@scene
async def test_ranks_that_never_meet_may_succeed(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await turns()
    await bench.end("a", 0)
    assert bench.session.fact.state is SessionState.FORMING
    await bench.end("b", 0)
    assert bench.session.fact.outcome is SessionOutcome.SUCCEEDED


@scene
async def test_a_rank_that_never_meets_those_who_wait_for_it_has_ended_early(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await turns()
    await bench.end("a", 0)
    bench.say("b", ReadyForWorld())
    assert bench.session.fact.outcome is SessionOutcome.EARLY_EXIT


@scene
async def test_ranks_without_a_state_end_one_after_the_other(bench: Bench) -> None:
    """The others write a model, say: nothing of theirs is broken."""
    bench.session.open(("a", "b"), 2)
    await connect(bench, 1, "a", "b")
    await bench.end("b", 0)
    assert (bench.session.fact.state, bench.heard("a")) == (SessionState.FINISHING, [])
    await bench.end("a", 0)
    assert bench.session.fact.outcome is SessionOutcome.SUCCEEDED


@pytest.mark.parametrize("order", interleaved(("Connected", "PeerLost", "ReadyForWorld"), ("Connected", 0)))
def test_a_world_was_there_in_whatever_order_its_early_end_is_heard(order: list[tuple[int, str | int]]) -> None:
    """An agent that has no core brings what its rank said long after the others' brought theirs."""
    words = {"Connected": Connected(1), "PeerLost": PeerLost(1), "ReadyForWorld": ReadyForWorld()}

    @scene
    async def play(bench: Bench) -> None:
        await come(bench)
        for rank, said in order:
            if isinstance(said, int):
                await bench.end("ab"[rank], said)
            else:
                bench.say("ab"[rank], words[said])
        assert bench.worlds == [["a", "b"]]
        assert bench.session.fact.outcome is SessionOutcome.EARLY_EXIT

    play()


@scene
async def test_a_world_counts_once_and_not_where_one_was_lost_before_it_was_complete(bench: Bench) -> None:
    await half_connect(bench)
    await bench.end("b", LOST)
    bench.say("a", Connected(1), ReadyForWorld())
    assert bench.worlds == []
    bench.say("a", Connected(2), Connected(2))
    assert bench.worlds == [["a"]]


@scene
async def test_a_rank_that_is_done_while_another_goes_on_is_an_early_exit(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await bench.form(1, "a", "b")
    await bench.end("a", 0)
    assert bench.session.fact.state is SessionState.FINISHING
    bench.say("b", PeerLost(1), ReadyForWorld())
    fact = bench.session.fact
    assert (fact.outcome, fact.detail) == (SessionOutcome.EARLY_EXIT, "rank 0 (a) ended with code 0")


@scene
async def test_ranks_that_have_trained_end_when_all_have(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await bench.form(1, "a", "b")
    bench.say("a", Done(1))
    assert bench.session.fact.state is SessionState.SETTLED
    bench.say("b", Done(1))
    assert (bench.heard("a")[-1], bench.heard("b")[-1]) == (AllDone(1), AllDone(1))
    await bench.end("a", 0)
    assert bench.session.fact.state is SessionState.FINISHING


@scene
async def test_survivors_go_on_without_the_one_that_failed_and_a_newcomer_is_last(bench: Bench) -> None:
    bench.session.open(("a", "b", "c"), 1)
    await bench.form(1, "a", "b", "c")
    await bench.end("a", LOST)
    assert [bench.heard(each)[-1] for each in "bc"] == [WorldBroken(1)] * 2
    bench.session.list_ranks(("d", "b", "c"), 1)
    bench.say("b", ReadyForWorld())
    bench.say("c", ReadyForWorld())
    assert (bench.heard("b"), bench.heard("c")) == ([EnterWorld(2, 0, 2)], [EnterWorld(2, 1, 2)])
    bench.say("b", Connected(2), Synced(2))
    bench.say("c", Connected(2), Synced(2))
    bench.say("d", ReadyForWorld())
    assert isinstance(bench.heard("b")[0], AnotherWanted)
    bench.say("b", ReadyForWorld())
    bench.say("c", ReadyForWorld())
    assert bench.heard("d") == [EnterWorld(3, 2, 3, alike=2)]


@scene
async def test_a_rank_that_was_taken_out_is_told_so(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await bench.form(1, "a", "b")
    bench.session.list_ranks(("b",), 1)
    bench.say("a", ReadyForWorld())
    bench.say("b", ReadyForWorld())
    assert bench.heard("a")[-1] == LeftOut()
    assert bench.heard("b")[-1] == EnterWorld(2, 0, 1, alike=1)


class TestBetweenWorlds:
    def test_all_are_awaited_while_none_has_come_back(self) -> None:
        @scene
        async def play(bench: Bench) -> None:
            bench.session.open(("a", "b", "c"), 1)
            await bench.form(1, "a", "b", "c")
            await bench.end("c", LOST)
            fact = bench.session.fact
            assert (fact.state, fact.stage) == (SessionState.FORMING, Stage.RETURNING)
            assert (fact.awaited, fact.arrived, fact.holders) == (("a", "b"), (), ("a", "b"))
            bench.say("b", ReadyForWorld())
            assert (bench.session.fact.awaited, bench.session.fact.arrived) == (("a",), ("b",))

        play()

    def test_who_has_the_state_and_does_not_come_is_stopped_where_another_has_come(self) -> None:
        @scene
        async def play(bench: Bench) -> None:
            bench.session.open(("a", "b", "c"), 1)
            await bench.form(1, "a", "b", "c")
            await bench.end("c", LOST)
            bench.session.reform()
            assert bench.workers.stopped == []
            bench.say("b", ReadyForWorld())
            bench.session.reform()
            assert bench.workers.stopped == ["a"]

        play()

    def test_those_who_connect_are_awaited(self) -> None:
        @scene
        async def play(bench: Bench) -> None:
            await half_connect(bench)
            assert (bench.session.fact.awaited, bench.session.fact.arrived) == (("a",), ("b",))

        play()

    def test_a_newcomer_that_does_not_come_where_others_wait_for_it_is_stopped_in_the_end(self) -> None:
        @scene
        async def play(bench: Bench) -> None:
            bench.session.open(("a", "b"), 2)
            await bench.form(1, "a", "b")
            await bench.end("b", LOST)
            bench.say("a", ReadyForWorld())
            assert bench.session.fact.state is SessionState.WAITING
            bench.session.list_ranks(("a", "c"), 2)
            await turns()
            fact = bench.session.fact
            assert (fact.state, fact.stage, fact.waiting) == (SessionState.FORMING, Stage.CONNECTING, ("a",))
            bench.session.reform()
            assert bench.workers.stopped == ["c"]
            assert not bench.session.fact.given_up
            await bench.end("c", LOST)
            assert bench.session.fact.state is SessionState.WAITING

        play()

    def test_those_that_hang_while_others_train_are_stopped(self) -> None:
        @scene
        async def play(bench: Bench) -> None:
            bench.session.open(("a",), 1)
            await bench.form(1, "a")
            bench.session.list_ranks(("a", "b"), 1)
            bench.session.list_ranks(("a", "c", "b"), 1)
            await turns()
            ranks = bench.session._running
            ranks["c"] = replace(ranks["c"], started=ranks["b"].started + TOGETHER + 1)
            fact = bench.session.fact
            assert (fact.state, fact.starting) == (SessionState.SETTLED, ("b", "c"))
            bench.session.reform()
            fact = bench.session.fact
            assert (bench.workers.stopped, fact.state, fact.starting) == (["b"], SessionState.SETTLED, ("c",))
            await bench.end("b", LOST)
            assert bench.exits == [("b", LOST, False)]
            bench.say("c", ReadyForWorld())
            assert bench.session.fact.starting == ()

        play()

    def test_somebody_has_the_state_whom_nobody_has_listed(self) -> None:
        """Upstream ends, for want of a survivor: one that was to take over may just have been lost."""

        @scene
        async def play(bench: Bench) -> None:
            bench.session.open(("a", "b"), 1)
            await bench.form(1, "a", "b")
            bench.session.list_ranks(("c",), 1)
            bench.say("a", ReadyForWorld())
            bench.say("b", ReadyForWorld())
            assert (bench.session.fact.state, bench.session.fact.holders) == (SessionState.WAITING, ("a", "b"))
            await turns()
            bench.say("c", ReadyForWorld())
            bench.session.list_ranks(("b", "c"), 1)
            assert bench.heard("b")[-1] == EnterWorld(2, 0, 2, alike=1)
            assert bench.heard("a")[-1] == LeftOut()

        play()


@pytest.mark.parametrize(
    ("code", "words"), [(0, "code 0"), (137, "code 137"), (-9, "SIGKILL"), (-6, "SIGABRT"), (-200, "signal 200")]
)
def test_exit_codes_for_people(code: int, words: str) -> None:
    assert describe(code) == words


@scene
async def test_a_script_that_trains_without_a_state_is_static_until_it_has_one(bench: Bench) -> None:
    bench.session.open(("a", "b"), 2)
    await connect(bench, 1, "a", "b")
    assert bench.session.fact.static == ()
    bench.say("b", Static(1))
    assert bench.session.fact.static == ("a", "b")
    bench.session.list_ranks(("a", "b", "c"), 2)
    await turns()
    bench.say("c", ReadyForWorld())
    assert bench.session.fact.static == ("a", "b")
    bench.say("a", Synced(1))
    assert bench.session.fact.static == ()
