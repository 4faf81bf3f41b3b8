"""The launcher's side of scripts for torchrun: what their processes are given, and what is told of their ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from elastic_runtime.engines.base import SessionCallbacks, SessionOutcome, SessionState, Stage
from elastic_runtime.engines.exits import ABORTED, describe
from elastic_runtime.engines.horovodrun.session import HorovodrunSession
from elastic_runtime.engines.torch import messages
from elastic_runtime.engines.torch.messages import Connected, Done, Offer, Offered, StoreAnswer, StoreAsk
from elastic_runtime.engines.torchrun.session import TorchrunSession
from elastic_runtime.errors import InvalidDocument
from tests.unit.runtime.worlds_bench import interleaved


@dataclass
class Workers:
    """Implements RankRunner: processes that run until :meth:`end`, or until they are told."""

    given: dict[str, tuple[int, Mapping[str, str]]] = field(default_factory=dict)
    ends: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    told: list[tuple[str, Any]] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    """Ranks that have ended by themselves, of which their agents have not told: no order reaches them."""

    def interface(self, rank_id: str) -> str:
        return f"eth-{rank_id}"

    def host(self, rank_id: str) -> str:
        return self.hosts.get(rank_id, rank_id)

    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str]) -> int:
        self.given[rank_id] = attempt, environment
        self.ends[rank_id] = asyncio.get_running_loop().create_future()
        return await self.ends[rank_id]

    def ended_by_itself(self, rank_id: str) -> bool:
        return rank_id in self.slow

    def tell(self, rank_id: str, word: Mapping[str, Any]) -> None:
        self.told.append((rank_id, messages.read_session_word(word)))

    def stop_rank(self, rank_id: str, *, stacks: bool = False) -> None:
        raise AssertionError("all are stopped, or none")

    def stop_ranks(self, *, stacks: Collection[str] = ()) -> None:
        assert not stacks
        self._all("stop", -15)

    def interrupt_ranks(self) -> None:
        self._all("interrupt", 0)

    def kill_ranks(self, *, stacks: bool = False) -> None:
        self._all("kill with stacks" if stacks else "kill", -9)

    def _all(self, order: str, code: int) -> None:
        self.orders.append(order)
        for rank_id, end in self.ends.items():
            if not end.done() and rank_id not in self.slow:
                end.set_result(code)


class Bench:
    """A session, and all that it did."""

    def __init__(self) -> None:
        self.workers, self.worlds, self.exits, self.over = Workers(), [], [], []
        starts = itertools.count()
        self.callbacks = SessionCallbacks(
            lambda: None,
            self.worlds.append,
            lambda *exit_: self.exits.append(exit_),
            self.over.append,
            lambda _size: next(starts),
        )
        self.session = TorchrunSession(self.workers, self.callbacks, max_wait=60.0)

    def say(self, rank_id: str, word: messages.RankWord) -> None:
        self.session.heard(rank_id, messages.write_rank_word(word))

    async def world(self, *members: str) -> None:
        """Open, or list others, and await that they have begun."""
        (self.session.list_ranks if self.worlds else self.session.open)(members, 1)
        await turns()
        for rank_id in members:
            self.say(rank_id, Connected(0))
        assert self.worlds[-1] == list(members)
        assert self.session.fact.state is SessionState.SETTLED

    async def end(self, rank_id: str, code: int) -> None:
        self.workers.ends[rank_id].set_result(code)
        await turns()


async def turns() -> None:
    """Whatever can happen, does."""
    for _ in range(10):
        await asyncio.sleep(0)


def scene(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    async def play() -> None:
        bench = Bench()
        try:
            await test(bench)
        finally:
            await bench.session.close(0.0)

    return lambda: asyncio.run(play())


@scene
async def test_processes_are_given_what_torchrun_gives(bench: Bench) -> None:
    await bench.world("a")
    await bench.world("a", "b")
    attempts = {rank_id: attempt for rank_id, (attempt, _) in bench.workers.given.items()}
    assert attempts == {"a": 1, "b": 0}
    given = bench.workers.given["b"][1]
    wanted = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert wanted.items() <= given.items()
    assert {given["GLOO_SOCKET_IFNAME"], given["NCCL_SOCKET_IFNAME"]} == {"eth-b"}


@scene
async def test_who_has_not_begun_is_awaited_but_not_who_was_asked_to_end(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await turns()
    bench.say("a", Connected(0))
    assert (bench.session.fact.stage, bench.session.fact.awaited) == (Stage.CONNECTING, ("b",))
    bench.say("b", Connected(0))
    await bench.end("a", 1)
    assert (bench.session.fact.stage, bench.session.fact.awaited) == (Stage.LEAVING, ())


@pytest.mark.parametrize("code", [1, ABORTED])
@pytest.mark.parametrize("order", interleaved(("Connected", "fails"), ("Connected", 0)))
def test_a_world_was_there_in_whatever_order_its_end_is_heard(order: list[tuple[int, str | int]], code: int) -> None:
    """An agent that has no core brings what its rank said long after the others' brought theirs."""

    @scene
    async def play(bench: Bench) -> None:
        bench.session.open(("a", "b"), 1)
        await turns()
        for rank, said in order:
            if said == "Connected":
                bench.say("ab"[rank], Connected(0))
            else:
                await bench.end("ab"[rank], said if isinstance(said, int) else code)
        assert bench.worlds == [["a", "b"]]

    play()


@scene
async def test_a_world_was_not_there_where_one_was_lost_before_it_was_complete(bench: Bench) -> None:
    bench.session.open(("a", "b"), 1)
    await turns()
    bench.say("b", Connected(0))
    await bench.end("b", -9)
    bench.say("a", Connected(0))
    assert bench.worlds == []


@scene
async def test_who_is_listed_no_more_is_over_and_nobody_has_failed(bench: Bench) -> None:
    await bench.world("a", "b")
    await bench.world("b")
    assert bench.workers.orders == ["interrupt"]
    assert (bench.exits, bench.over) == ([("a", 0, True), ("b", 0, True)], ["a"])


@scene
async def test_a_world_that_is_broken_up_is_asked_for_its_checkpoint_and_started_anew(bench: Bench) -> None:
    await bench.world("a", "b")
    bench.session.break_up()
    bench.session.break_up()
    await turns()
    for rank_id in ("a", "b"):
        bench.say(rank_id, Connected(0))
    assert bench.workers.orders == ["interrupt"]
    assert bench.worlds == [["a", "b"], ["a", "b"]]
    assert (bench.exits, bench.over) == ([("a", 0, True), ("b", 0, True)], [])


@scene
async def test_who_has_failed_for_the_sake_of_a_lost_one_is_not_counted(bench: Bench) -> None:
    await bench.world("a", "b", "c")
    await bench.end("b", 1)
    await bench.end("a", -9)
    assert bench.session.fact.outcome is SessionOutcome.LOST
    assert ("a", -9, False) in bench.exits
    assert [expected for _, code, expected in bench.exits if code == 1 or code == -9] == [False, True, True]
    assert sorted(bench.over) == ["a", "b", "c"]


@scene
async def test_who_aborts_for_the_sake_of_a_lost_one_is_not_counted(bench: Bench) -> None:
    await bench.world("a", "b", "c")
    await bench.end("b", -6)
    assert bench.workers.orders == [], "nobody is lost, as far as it is known"
    await bench.end("a", -9)
    assert bench.session.fact.outcome is SessionOutcome.LOST
    assert sorted(bench.exits) == [("a", -9, False), ("b", -6, True), ("c", -9, True)]


@scene
async def test_who_aborts_after_all_were_asked_to_end_has_not_failed(bench: Bench) -> None:
    await bench.world("a", "b")
    bench.workers.interrupt_ranks = lambda: None  # type: ignore[method-assign]
    bench.session.list_ranks(("a", "b", "c"), 1)
    await bench.end("a", 0)
    await bench.end("b", -6)
    assert bench.exits == [("a", 0, True), ("b", -6, True)]
    assert bench.session.rank_of == {"a": 0, "b": 1, "c": 2}


@scene
async def test_who_aborts_by_itself_is_counted_and_nobody_else(bench: Bench) -> None:
    bench.session = TorchrunSession(bench.workers, bench.callbacks, max_wait=0.0)
    await bench.world("a", "b", "c")
    await bench.end("b", -6)
    assert bench.session.fact.outcome is SessionOutcome.LOST
    assert [exit_ for exit_ in bench.exits if not exit_[2]] == [("b", -6, False)]


@pytest.mark.parametrize("slow", ["ab", "a", ""])
def test_a_training_that_is_over_does_not_begin_anew_for_a_change_that_was_asked_for_later(slow: str) -> None:
    """Ranks with slow agents had ended by themselves; the others end as they are asked to."""

    @scene
    async def play(bench: Bench) -> None:
        await bench.world("a", "b")
        bench.workers.slow = set(slow)
        bench.session.list_ranks(("a", "b", "c"), 1)
        assert bench.workers.orders == ["interrupt"]
        for rank_id in slow:
            await bench.end(rank_id, 0)
        await turns()
        over = bench.session.fact.outcome is SessionOutcome.SUCCEEDED
        assert over == (slow == "ab")
        assert over or bench.session.rank_of == {"a": 0, "b": 1, "c": 2}
        bench.workers.slow.clear()

    play()


@scene
async def test_restarts_are_counted_over_all_sessions_of_a_run(bench: Bench) -> None:
    await bench.world("a")
    await bench.end("a", -9)
    bench.session = TorchrunSession(bench.workers, bench.callbacks)
    bench.session.open(("a",), 1)
    await turns()
    assert bench.workers.given["a"][1]["TORCHELASTIC_RESTART_COUNT"] == "1"


@scene
async def test_who_has_failed_alone_fails_the_run_and_the_others_are_killed(bench: Bench) -> None:
    bench.session = TorchrunSession(bench.workers, bench.callbacks, max_wait=0.0)
    await bench.world("a", "b")
    await bench.end("b", 7)
    assert bench.workers.orders == ["kill with stacks"], "or nobody would know where the others stood"
    fact = bench.session.fact
    assert fact.outcome is SessionOutcome.FAILED
    assert fact.detail == "rank 1 (b) ended with code 7, rank 0 (a) still ran and was killed"
    assert ("b", 7, False) in bench.exits


@pytest.mark.parametrize(
    ("code", "outcome", "blamed"),
    [(-9, SessionOutcome.LOST, ["b"]), (-11, SessionOutcome.LOST, ["b"]), (1, SessionOutcome.FAILED, ["a", "b"])],
)
def test_what_others_failed_for_counts_though_it_is_heard_after_they_were_killed(
    code: int, outcome: SessionOutcome, blamed: list[str]
) -> None:
    @scene
    async def play(bench: Bench) -> None:
        bench.session = TorchrunSession(bench.workers, bench.callbacks, max_wait=0.0)
        await bench.world("a", "b", "c")
        bench.workers.slow = {"b"}
        await bench.end("a", 1)
        assert bench.workers.orders == ["kill with stacks"]
        await bench.end("b", code)
        fact = bench.session.fact
        assert fact.outcome is outcome
        assert fact.detail.startswith(f"rank 0 (a) ended with code 1, rank 1 (b) ended with {describe(code)}, rank 2")
        assert sorted(rank_id for rank_id, _, expected in bench.exits if not expected) == blamed

    play()


@scene
async def test_ranks_of_one_host_are_numbered_there(bench: Bench) -> None:
    bench.workers.hosts = {"a": "this", "b": "that", "c": "this"}
    bench.session.open(("a", "b", "c"), 1)
    await turns()
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    local = {each: tuple(given[name] for name in names) for each, (_, given) in bench.workers.given.items()}
    assert local == {"a": ("0", "0", "2", "0"), "c": ("1", "1", "2", "0"), "b": ("2", "0", "1", "1")}


@scene
async def test_a_size_that_the_script_refuses_is_no_failure_where_another_had_worked(bench: Bench) -> None:
    started: list[int] = []
    callbacks = replace(
        bench.callbacks,
        on_start=lambda size: started.append(size) or 0,
        worked_before=lambda size: 2 if size == 3 else 0,
    )
    bench.session = TorchrunSession(bench.workers, callbacks, max_wait=0.0)
    await bench.world("a", "b")
    await bench.world("a", "b", "c")
    await bench.end("b", 1)
    fact = bench.session.fact
    assert (fact.outcome, fact.size, fact.before) == (SessionOutcome.REFUSED, 3, 2)
    assert started == [2, 3]
    assert all(expected for _, _, expected in bench.exits), "nobody is counted as failed"


@scene
async def test_ranks_find_each_other_in_the_store_of_their_own_world(bench: Bench) -> None:
    await bench.world("a", "b")
    bench.say("a", StoreAsk(0, 1, "get", ("key",)))
    bench.say("b", StoreAsk(0, 1, "set", ("key",), value="eA=="))
    assert ("a", StoreAnswer(1, "eA==")) in bench.workers.told
    await bench.world("a")
    bench.say("a", StoreAsk(0, 2, "check", ("key",)))
    assert bench.workers.told[-1] == ("a", StoreAnswer(2, number=0))


@scene
async def test_ranks_of_horovod_are_told_their_place_and_meet_in_their_own_world(bench: Bench) -> None:
    bench.session = HorovodrunSession(bench.workers, bench.callbacks)
    await bench.world("a")
    await bench.world("a", "b")
    place = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"}
    restarted = {"HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2", "ELASTIC_RUNTIME_RESTARTS": "1"}
    assert (place | restarted | {"HOROVOD_GLOO_IFACE": "eth-b"}).items() <= bench.workers.given["b"][1].items()
    bench.say("a", Offer(0, "global", 0, ("a for b",)))
    await bench.world("b", "c")
    bench.say("b", Offer(0, "global", 0, ("b for c",)))
    bench.say("c", Offer(0, "global", 1, ("c for b",)))
    assert bench.workers.told == [
        ("b", Offered(0, "global", 0, ("c for b",))),
        ("c", Offered(0, "global", 1, ("b for c",))),
    ]


@scene
async def test_no_rank_says_what_only_elastic_ones_say(bench: Bench) -> None:
    await bench.world("a")
    with pytest.raises(InvalidDocument, match="Done"):
        bench.say("a", Done(1))
    bench.say("stranger", Done(1))
