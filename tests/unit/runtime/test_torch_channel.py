"""The rank's side of torch.distributed, against a session that is played."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Literal

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from elastic_runtime.agent.rank_links import WORD
from elastic_runtime.clock import utc_now
from elastic_runtime.engines.torch import channel, messages
from elastic_runtime.engines.torch.channel import Channel, WorldLost
from elastic_runtime.engines.torch.messages import (
    AgreeAt,
    AgreementWanted,
    AllDone,
    AnotherWanted,
    EnterWorld,
    LeftOut,
    Prepare,
    Prepared,
    StoreAnswer,
    WorldBroken,
)
from elastic_runtime.engines.torch.store import AgentStore
from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.rank_link import EngineWord, Handover, RankLink, encode_rank_message


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


class Session:
    """The agent's end of the line, and what stands behind it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self._lines, self._heard = sock, LineReader(), iter(())

    def say(self, *words: messages.SessionWord) -> None:
        self.sock.sendall(
            b"".join(encode_rank_message(EngineWord(messages.write_session_word(word))) for word in words)
        )

    def hears(self) -> messages.RankWord:
        """The next word."""
        while (plain := next(self._heard, None)) is None:
            self._heard = self._lines.feed(self.sock.recv(65536))
        return messages.read_rank_word(plain["word"])


class Bench:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.settimeout(10)
        self.link, self.session = RankLink(ours), Session(theirs)
        self.serials: list[int] = []
        self.told = threading.Event()
        self.broken = threading.Event()
        self.channel = Channel(self.link, self.another, self.broken.set)

    def another(self, wanted: AnotherWanted) -> None:
        self.serials.append(wanted.serial)
        self.told.set()

    def enter(self, world: int, in_vain: int = 0) -> None:
        self.session.say(place := EnterWorld(world, 0, 2, in_vain=in_vain))
        assert self.channel.next_world(lambda: None, 0.01) == place
        assert self.session.hears() == messages.ReadyForWorld()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.session.sock.close()
    assert made.broken.wait(10), "its thread has ended"
    made.link.close()


def test_waits_for_a_world_and_looks_around_meanwhile(bench: Bench) -> None:
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            bench.session.say(LeftOut())

    assert bench.channel.next_world(look, 0.01) is None
    assert len(looks) >= 2


def test_looks_around_once_more_before_it_is_in_none(bench: Bench) -> None:
    soon = utc_now() + timedelta(seconds=60)
    bench.session.sock.sendall(encode_rank_message(Handover("worker-1", soon)))
    bench.session.say(LeftOut())

    assert bench.channel.next_world(bench.link.hear, 60.0) is None

    assert [*bench.link.leaving] == ["worker-1"]


def test_a_world_is_broken_for_whoever_waits_in_it(bench: Bench) -> None:
    bench.enter(1)
    threading.Thread(target=lambda: [bench.session.hears(), bench.session.say(WorldBroken(1))]).start()
    with pytest.raises(WorldLost):
        AgentStore(bench.channel, timedelta(seconds=10)).get("address")
    assert bench.broken.is_set()
    with pytest.raises(WorldLost):
        bench.channel.done()
    assert bench.session.hears() == messages.Done(1)
    bench.enter(2)
    assert not bench.channel.is_broken


@pytest.mark.parametrize(("worlds", "seconds", "breaks"), [(5, 31, True), (4, 31, False), (5, 29, False)])
def test_worlds_that_break_again_and_again_are_told_from_a_loss(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, worlds: int, seconds: float, breaks: bool
) -> None:
    bench.enter(1)
    now = time.monotonic()
    monkeypatch.setattr(channel.time, "monotonic", lambda: now + seconds)
    bench.enter(2, in_vain=worlds)
    assert bench.channel.breaks_again_and_again == breaks


def test_a_store_that_does_not_answer_is_not_waited_for_for_ever(bench: Bench) -> None:
    bench.enter(1)
    with pytest.raises(TimeoutError):
        AgentStore(bench.channel, timedelta(milliseconds=10)).wait(["a", "b"])
    assert bench.session.hears() == messages.StoreAsk(1, 1, "wait", ("a", "b"))
    assert bench.session.hears() == messages.StoreAsk(1, 1, "give_up", ("a", "b")), "the session need not wait, either"


def test_the_store_reads_what_others_have_set(bench: Bench) -> None:
    bench.enter(1)
    store = AgentStore(bench.channel, timedelta(seconds=10))
    bench.session.say(StoreAnswer(1), StoreAnswer(2, "AAE="), StoreAnswer(3, number=4))
    store.set("a", b"\x00\x01")
    assert store.get("a") == b"\x00\x01"
    assert store.add("n", 2) == 4
    asked = [bench.session.hears() for _ in range(3)]
    assert asked[0] == messages.StoreAsk(1, 1, "set", ("a",), "AAE=")
    assert asked[2] == messages.StoreAsk(1, 3, "add", ("n",), amount=2)


def test_while_groups_connect_one_way_to_the_launcher_brings_what_all_others_have_set(bench: Bench) -> None:
    bench.enter(1)
    store = AgentStore(bench.channel, timedelta(seconds=10))
    with store.connecting(1, 40):
        store.set("gloo/1", b"mine")
        assert bench.session.hears() == messages.StoreAsk(1, 1, "set", ("gloo/1",), text(b"mine")), "not waited for"
        bench.session.say(StoreAnswer(1), *(StoreAnswer(serial, text(bytes([serial]))) for serial in range(2, 33)))
        store.wait(["gloo/0"])
        asked = [bench.session.hears() for _ in range(31)]
        others = [rank for rank in range(32) if rank != 1]
        assert asked == [messages.StoreAsk(1, 2 + at, "get", (f"gloo/{rank}",)) for at, rank in enumerate(others)]
        assert [store.get(f"gloo/{rank}") for rank in others] == [bytes([2 + at]) for at in range(31)]
        bench.session.say(*(StoreAnswer(serial, text(b"last")) for serial in range(33, 41)))
        assert [store.get(f"gloo/{rank}") for rank in range(32, 40)] == [b"last"] * 8
        assert [bench.session.hears().keys for _ in range(8)] == [(f"gloo/{rank}",) for rank in range(32, 40)]
        bench.session.say(StoreAnswer(41, text(b"one")))
        assert store.get("options") == b"one", "what is no rank's own is asked for alone"
        assert bench.session.hears() == messages.StoreAsk(1, 41, "get", ("options",))
    with pytest.raises(ValueError, match="500 characters"), store.connecting(1, 40):
        store.get("k" * 501)
    bench.session.say(StoreAnswer(42, text(b"two")))
    assert store.get("gloo/3") == b"two", "later it is what it is then"


def test_a_world_that_breaks_while_groups_connect_is_lost_to_who_waits(bench: Bench) -> None:
    bench.enter(1)
    store = AgentStore(bench.channel, timedelta(seconds=10))
    threading.Thread(target=lambda: [bench.session.hears(), bench.session.say(WorldBroken(1))]).start()
    with pytest.raises(WorldLost), store.connecting(0, 2):
        store.get("gloo/1")


def test_a_store_that_refuses_is_not_waited_for_for_ever(bench: Bench) -> None:
    bench.enter(1)
    with pytest.raises(TimeoutError):
        AgentStore(bench.channel, timedelta(milliseconds=10)).set("a", b"")


def test_more_than_the_store_takes_is_refused_before_it_is_sent(bench: Bench) -> None:
    bench.enter(1)
    store = AgentStore(bench.channel, timedelta(seconds=10))
    with pytest.raises(ValueError, match=r"more than 24576 bytes.*by a collective, or in a file"):
        store.set("a", b"v" * 24577)
    with pytest.raises(ValueError, match="24576 bytes"):
        store.compare_set("a", b"v" * 12289, b"v" * 12288)
    with pytest.raises(ValueError, match="500 characters"):
        store.get("k" * 501)
    with pytest.raises(ValueError, match="32768 characters"):
        store.wait([f"rank/{rank}" for rank in range(4000)])
    bench.session.say(StoreAnswer(1))
    store.set("a", b"v" * 24576)
    assert bench.session.hears() == messages.StoreAsk(1, 1, "set", ("a",), text(b"v" * 24576))


KEYS = st.text(st.characters(codec="utf-8"), max_size=messages.MOST_KEY)


@given(st.one_of(st.tuples(KEYS), st.lists(KEYS).map(tuple)), st.integers(0, 24576), st.integers(0, 24576))
@example(("\N{PILE OF POO}" * 500,), 24576, 0)
@example(("k" * 500,), 12288, 12288)
@example(("\N{PILE OF POO}" * 500,) * 5, 0, 0)
@example(("",) * 8000, 0, 0)
def test_an_agent_reads_the_line_of_whatever_the_store_takes(keys: tuple[str, ...], value: int, expected: int) -> None:
    operation: Literal["compare_set", "wait"] = "compare_set" if len(keys) == 1 else "wait"
    values = (text(b"v" * value), text(b"v" * expected)) if operation == "compare_set" else ("", "")
    assume(not messages.excess(keys, *values))
    ask = messages.StoreAsk(2**63, 2**63, operation, keys, *values, amount=-(2**63))
    assert len(encode_rank_message(EngineWord(messages.write_rank_word(ask)))) <= WORD


def test_ranks_agree_at_the_first_commit_and_where_the_session_says(bench: Bench) -> None:
    agrees, session = bench.channel.agrees, bench.session
    bench.enter(1)
    assert [agrees() for _ in range(3)] == [True, False, False]
    session.say(Prepare(1, 1))
    assert session.hears() == Prepared(1, 1, begun=3)
    with ThreadPoolExecutor(1) as threads:
        fourth = threads.submit(agrees)
        with pytest.raises(TimeoutError):
            fourth.result(0.1)  # It might be this one.
        session.say(AgreeAt(1, 1, commit=5))
        assert fourth.result(10) is False
    assert [agrees() for _ in range(2)] == [True, False]
    bench.enter(2)
    assert [agrees() for _ in range(2)] == [True, False], "counted anew"


def test_a_rank_that_waits_for_the_commit_to_agree_at_hears_that_its_world_is_broken(bench: Bench) -> None:
    bench.enter(1)
    bench.session.say(Prepare(1, 1), WorldBroken(1))
    assert bench.session.hears() == Prepared(1, 1, begun=0)
    assert bench.broken.wait(10)
    with pytest.raises(WorldLost):
        bench.channel.agrees()
    bench.enter(2)
    assert bench.channel.agrees()


def test_a_notice_is_something_to_agree_upon_with_others(bench: Bench) -> None:
    notice = encode_rank_message(Handover("worker-1", utc_now()))
    bench.session.sock.sendall(notice)
    bench.enter(4)  # Nothing was said before.
    bench.session.sock.sendall(notice)
    assert bench.session.hears() == AgreementWanted(4)
    bench.link.hear()
    assert "worker-1" in bench.link.leaving


def test_words_of_an_earlier_world_are_left_out(bench: Bench) -> None:
    bench.enter(2)
    bench.session.say(WorldBroken(1), AllDone(1), AnotherWanted(1, 5), AnotherWanted(2, 6))
    assert bench.told.wait(10)
    assert (bench.serials, bench.channel.is_broken) == ([6], False)


def test_the_end_of_the_agent_ends_every_wait(bench: Bench) -> None:
    bench.enter(1)
    bench.session.sock.close()
    with pytest.raises(ConnectionError):
        bench.channel.done()
    with pytest.raises(ConnectionError):
        bench.channel.next_world(lambda: None, 0.01)


def test_the_end_of_the_agent_ends_the_wait_for_an_agreement(bench: Bench) -> None:
    bench.enter(1)
    bench.session.say(Prepare(1, 1))
    assert bench.session.hears() == Prepared(1, 1, begun=0)
    bench.session.sock.close()
    with pytest.raises(ConnectionError):
        bench.channel.agrees()
