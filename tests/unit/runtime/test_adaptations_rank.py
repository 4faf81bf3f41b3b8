"""The ranks' rows of the table in :mod:`elastic_runtime.engines.horovod`, beside stock Horovod where one rank suffices.

All of them at once, installed in a real rank: ``tests/local/test_adaptations.py``.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import horovod.torch.mpi_ops
import pytest
from horovod.common.elastic import State, notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from elastic_runtime.engines import gloo_sockets as engine_sockets
from elastic_runtime.engines.gloo_sockets import cut, notice_silence, open_sockets
from elastic_runtime.engines.horovod import rank as adaptation
from elastic_runtime.engines.torch.channel import WorldLost
from elastic_runtime.engines.torch.messages import (
    AnotherWanted,
    Connected,
    EnterWorld,
    LeftOut,
    PeerLost,
    RankWord,
    ReadyForWorld,
    SessionWord,
    WorldBroken,
    read_rank_word,
    write_rank_word,
    write_session_word,
)
from elastic_runtime.errors import OwnershipLost
from elastic_runtime.protocol.rank_link import EngineWord, RankLink
from elastic_runtime.protocol.rank_sockets import RANK_SOCKET
from tests.paced import until
from tests.unit.runtime.linked_ranks import SOON, in_thread
from tests.unit.runtime.rank_bench import Agent


def gloo_sockets() -> tuple[int, int]:
    """Two connected sockets that no Python code knows of."""
    pair = (ctypes.c_int * 2)()
    assert ctypes.CDLL(None).socketpair(socket.AF_UNIX, socket.SOCK_STREAM, 0, pair) == 0
    return pair[0], pair[1]


@pytest.fixture
def c_sockets() -> Iterator[tuple[int, int]]:
    pair = gloo_sockets()
    yield pair
    for descriptor in pair:
        os.close(descriptor)


def disconnected(descriptor: int) -> bool:
    """Whether the other end is shut down; it never blocks."""
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        try:
            return sock.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False


class TestCut:
    """After a SIGKILL the survivors wait on old sockets of the one that noticed first."""

    def test_the_other_end_hears_of_it(self, c_sockets: tuple[int, int]) -> None:
        ours, theirs = c_sockets
        assert cut({ours: open_sockets()[ours]}) == 1
        assert disconnected(theirs)

    def test_the_descriptor_stays_its_owners_to_close(self, c_sockets: tuple[int, int]) -> None:
        ours, _ = c_sockets
        cut({ours: open_sockets()[ours]})
        os.fstat(ours)

    def test_a_descriptor_that_is_somebody_elses_by_now_is_left_alone(self) -> None:
        gone, other = gloo_sockets()
        identity = open_sockets()[gone]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            os.dup2(ours.fileno(), gone)
            assert cut({gone: identity}) == 0
            assert not disconnected(theirs.fileno())
        os.close(gone)
        os.close(other)

    def test_what_is_closed_or_never_was_connected_is_no_error(self) -> None:
        gone, other = gloo_sockets()
        identity = open_sockets()[gone]
        os.close(gone)
        os.close(other)
        with socket.socket() as alone:
            assert cut({gone: identity, alone.fileno(): open_sockets()[alone.fileno()]}) == 0


@pytest.fixture
def horovod_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """In the place of Horovod's C++ side; ``init`` opens a socket there and one in Python."""
    made = SimpleNamespace(log=[], c=[], python=[])

    def init() -> None:
        made.log.append("init")
        made.c.append(gloo_sockets())
        made.python.append(socket.socketpair())

    monkeypatch.setattr(horovod.torch.mpi_ops, "init", init)
    monkeypatch.setattr(horovod.torch.mpi_ops, "shutdown", lambda: made.log.append("shutdown"))
    monkeypatch.setattr(horovod.torch.mpi_ops, "is_initialized", lambda: False)
    monkeypatch.setattr(horovod.torch.mpi_ops, "rank", lambda: 0)
    monkeypatch.setattr(horovod.torch.mpi_ops, "size", lambda: 1)
    yield made
    for first, second in made.c:
        os.close(first)
        os.close(second)
    for pair in made.python:
        for sock in pair:
            sock.close()


class TestSilence:
    """Survivors wait 30 s for a machine that vanished. With real ranks: tests/local/test_losses."""

    def test_the_kernel_gives_up_a_peer_that_does_not_answer(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
            notice_silence([ours.fileno()], 10.0)
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            names = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            options = [ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
            # Asked from the third second on, each second, seven times.
            assert options == [10_000, 3, 1, 7]

    def test_what_is_no_tcp_or_closed_is_left_as_it_is(self, c_sockets: tuple[int, int]) -> None:
        closed, other = gloo_sockets()
        os.close(closed)
        os.close(other)
        notice_silence([*c_sockets, closed], 10.0)
        os.fstat(c_sockets[0])


class Session:
    """Tells a rank its worlds, one whenever it is ready for another, and hears what it says besides.

    Args:
        agent: of the rank.
        places: one after the other; None: nothing is said.
    """

    def __init__(self, agent: Agent, places: Sequence[EnterWorld | LeftOut | None]) -> None:
        self.meeting = adaptation.Meeting(agent.link)
        self.heard: list[RankWord] = []
        self._agent, self._places = agent, iter(places)
        self.over = in_thread(self._hear)

    def tell(self, word: SessionWord) -> None:
        self._agent.say(EngineWord(write_session_word(word)))

    def _hear(self) -> None:
        while PeerLost(99) not in self.heard:
            for word in self._agent.next_words():
                self.heard.append(read_rank_word(word))
                if isinstance(self.heard[-1], ReadyForWorld) and (place := next(self._places, None)) is not None:
                    self.tell(place)


Meet = Callable[..., Session]


@pytest.fixture
def meet(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meet]:
    """Begins a session with this process as its rank."""
    sessions: list[Session] = []
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"):
        monkeypatch.setenv(f"HOROVOD_{name}", "")
    for name in ("ADDR", "PORT", "TOKEN"):
        monkeypatch.setenv(f"HOROVOD_GLOO_RENDEZVOUS_{name}", "")

    def begin(*places: EnterWorld | LeftOut | None) -> Session:
        sessions.append(Session(agent, places))
        monkeypatch.setattr(adaptation, "meeting", lambda: sessions[-1].meeting)
        return sessions[-1]

    yield begin
    agent.link.send(EngineWord(write_rank_word(PeerLost(99))))
    for session in sessions:
        session.over.result(SOON)


class TestReset:
    def test_cuts_what_gloo_opened_and_nothing_of_pythons(
        self, horovod_calls: SimpleNamespace, meet: Meet, c_sockets: tuple[int, int]
    ) -> None:
        session = meet(EnterWorld(1, 0, 1), EnterWorld(2, 0, 1))
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        rank.init()
        rank.reset()
        (old, _), (new, _) = horovod_calls.c
        assert disconnected(old)
        assert not disconnected(new)
        assert not disconnected(c_sockets[0]), "it was there before"
        assert not any(disconnected(sock.fileno()) for pair in horovod_calls.python for sock in pair)
        until(lambda: len(session.heard) == 4, "all is said")
        assert session.heard == [ReadyForWorld(), Connected(1), ReadyForWorld(), Connected(2)]

    @pytest.mark.parametrize(
        ("alike", "state", "skips"),
        [
            (1, SimpleNamespace(is_replicated=True), True),
            (0, SimpleNamespace(is_replicated=True), False),
            (1, SimpleNamespace(is_replicated=False), False),
            pytest.param(1, State(None, None), False, id="Horovod's own"),
        ],
    )
    def test_syncs_unless_all_of_the_next_world_have_left_at_one_commit_with_a_state_that_is_replicated(
        self,
        horovod_calls: SimpleNamespace,
        meet: Meet,
        monkeypatch: pytest.MonkeyPatch,
        alike: int,
        state: object,
        skips: bool,
    ) -> None:
        meet(EnterWorld(1, 0, 1), EnterWorld(2, 0, 1, alike=alike))
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        rank.init()
        monkeypatch.setattr(adaptation.frameworks, "current", lambda: "it")
        monkeypatch.setattr(adaptation, "_ranks", {"it": rank})
        assert adaptation._reset(state) is skips
        assert horovod_calls.log == ["init", "shutdown", "init"]

    @pytest.mark.parametrize(("asked", "seconds"), [("", "172800"), ("90", "90")])
    def test_collectives_wait_without_end_for_nobody(
        self,
        horovod_calls: SimpleNamespace,
        meet: Meet,
        monkeypatch: pytest.MonkeyPatch,
        asked: str,
        seconds: str,
    ) -> None:
        name = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
        monkeypatch.setenv(name, asked)
        if not asked:
            monkeypatch.delenv(name)
        meet(EnterWorld(1, 0, 1))
        adaptation.Rank(horovod.torch.mpi_ops).init()
        assert (horovod_calls.log, os.environ[name]) == (["init"], seconds)

    def test_calls_its_hooks_while_the_old_world_is_connected(
        self, horovod_calls: SimpleNamespace, meet: Meet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = horovod_calls.log
        session = meet(EnterWorld(1, 0, 1), EnterWorld(2, 0, 1))
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        monkeypatch.setattr(adaptation, "before_reset", [lambda: log.append("hook")])
        monkeypatch.setattr(engine_sockets, "cut", lambda sockets, **_: log.append(f"cut {len(sockets)}"))
        ask = session.meeting.next_world
        monkeypatch.setattr(session.meeting, "next_world", lambda: log.append("ask") or ask())
        rank.init()
        rank.reset()
        assert log == ["ask", "init", "hook", "shutdown", "cut 2", "ask", "init"]

    def test_of_a_rank_that_was_taken_out_ends_it_with_success(
        self, horovod_calls: SimpleNamespace, meet: Meet
    ) -> None:
        meet(EnterWorld(1, 0, 1), LeftOut())
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        rank.init()
        with pytest.raises(SystemExit) as end:
            rank.reset()
        assert end.value.code == 0
        assert horovod_calls.log == ["init", "shutdown"]

    def test_goes_on_to_the_next_world_where_one_cannot_be_connected(
        self, horovod_calls: SimpleNamespace, meet: Meet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = meet(*(EnterWorld(world, 0, 1) for world in range(1, 6)))
        init, failures = horovod.torch.mpi_ops.init, iter([True, True, False, True, True, True])

        def fail() -> None:
            init()
            if next(failures):
                raise ValueError("Horovod has not been initialized")

        monkeypatch.setattr(horovod.torch.mpi_ops, "init", fail)
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        rank.init()
        assert horovod_calls.log == ["init", "shutdown", "init", "shutdown", "init"]
        until(lambda: Connected(3) in session.heard, "it says so")
        lost = [ReadyForWorld(), PeerLost(1), ReadyForWorld(), PeerLost(2), ReadyForWorld(), Connected(3)]
        assert session.heard == lost


class TroubledState:
    """Loses a rank at each of these, once; interrupts the training at the first commit, as if some left only or not."""

    def __init__(self, *troubles: str, leaving: bool = False) -> None:
        self._troubles, self._leaving, self.log = list(troubles), leaving, []

    def _do(self, what: str) -> None:
        self.log.append(what)
        if what in self._troubles:
            self._troubles.remove(what)
            raise HorovodInternalError(what)

    def commit(self) -> None:
        self.log.append("commit")
        if self.log.count("commit") == 1:
            raise HostsUpdatedInterrupt(self._leaving)

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self._do(name)


class TestRun:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(adaptation, "notification_manager", SimpleNamespace(
            init=lambda: None, register_listener=lambda _: None, remove_listener=lambda _: None
        ))  # fmt: skip
        monkeypatch.setattr(adaptation, "_reset", lambda _: False)
        said = [adaptation.Meeting.synced, adaptation.Meeting.done, adaptation.Meeting.peer_lost]
        met = SimpleNamespace(**{each.__name__: lambda: None for each in said}, breaks_again_and_again=False)
        monkeypatch.setattr(adaptation, "meeting", lambda: met)
        self.met = met

    def test_goes_from_world_to_world_and_says_when_it_is_over(self) -> None:
        state = TroubledState()
        assert adaptation.run(lambda state: state.commit() or "result")(state) == "result"
        assert state.log == ["sync", "commit", "on_reset", "sync", "on_train_again", "commit", "on_run_end"]

    def test_has_nothing_to_sync_where_some_have_left_and_nobody_comes(self) -> None:
        state = TroubledState(leaving=True)
        adaptation.run(TroubledState.commit)(state)
        assert state.log == ["sync", "commit", "on_reset", "on_same_state", "on_train_again", "commit", "on_run_end"]
        lost = TroubledState("on_reset", leaving=True)
        adaptation.run(TroubledState.commit)(lost)
        again = ["restore", "on_reset", "sync", "on_train_again", "commit", "on_run_end"]
        assert lost.log == ["sync", "commit", "on_reset", *again]

    @pytest.mark.parametrize(
        ("trouble", "log"),
        [
            ("sync", "sync restore {again} commit {again} commit on_run_end"),
            ("on_reset", "sync commit on_reset restore {again} commit on_run_end"),
            ("on_run_end", "sync commit {again} commit on_run_end restore {again} commit on_run_end"),
        ],
    )
    def test_recovers_from_a_loss_wherever_it_is(self, trouble: str, log: str) -> None:
        state = TroubledState(trouble)
        adaptation.run(TroubledState.commit)(state)
        assert " ".join(state.log) == log.format(again="on_reset sync on_train_again")

    def test_ends_by_what_breaks_its_worlds_again_and_again(self) -> None:
        """As two ranks on one GPU do over NCCL, which refuses that."""
        self.met.breaks_again_and_again = True
        state = TroubledState("sync")
        with pytest.raises(HorovodInternalError):
            adaptation.run(TroubledState.commit)(state)
        assert state.log == ["sync"]
        assert adaptation._is_loss(WorldLost("another rank has ended by that error"))

    def test_any_other_error_ends_it(self) -> None:
        state = TroubledState()

        def train(_state: TroubledState) -> None:
            raise RuntimeError("a bug of the script")

        with pytest.raises(RuntimeError, match="a bug"):
            adaptation.run(train)(state)
        assert state.log == ["sync"]
        assert len(adaptation.while_waiting) == 0


class TestNextWorld:
    def test_tells_horovod_its_place(self, meet: Meet) -> None:
        session = meet(EnterWorld(1, 2, 5, local_rank=1, local_size=3))
        session.meeting.next_world()
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        # Of which each rank is a host of its own.
        assert [os.environ[f"HOROVOD_{name}"] for name in names] == ["2", "5", "0", "1", "2", "5"]

    def test_has_hooks_called_while_it_waits_for_others(self, meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[None] = []
        session = meet(None)
        monkeypatch.setattr(adaptation, "while_waiting", [lambda: calls.append(None)])
        waiter = in_thread(session.meeting.next_world)
        until(lambda: len(calls) >= 2, "two calls")
        assert not waiter.done()
        session.tell(EnterWorld(1, 0, 1))
        waiter.result(SOON)

    def test_ends_with_what_a_hook_raises(self, meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused() -> None:
            raise OwnershipLost("the run has a newer owner")

        monkeypatch.setattr(adaptation, "while_waiting", [refused])
        with pytest.raises(OwnershipLost):
            meet(None).meeting.next_world()

    def test_without_an_agent_there_is_no_run(self, agent: Agent) -> None:
        meeting = adaptation.Meeting(agent.link)
        agent.close()
        with pytest.raises(ConnectionError, match="agent of this rank is gone"):
            meeting.next_world()

    def test_a_process_that_a_rank_has_started_never_trains_alone(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Nobody would see it. In real runs it joins: tests/local/test_commands.py."""
        monkeypatch.setattr(adaptation, "shared_link", lambda: RankLink(None))
        assert adaptation.meeting.__wrapped__() is None, "without an agent it meets whom Horovod's environment says"
        monkeypatch.setenv(RANK_SOCKET, str(tmp_path / "link-0"))
        with pytest.raises(ConnectionError, match="cannot take part in the run"):
            adaptation.meeting.__wrapped__()


class TestChanges:
    """Two changes in the same second, or one during a reset: upstream loses the notification."""

    @pytest.fixture
    def state(self) -> Iterator[State]:
        state = State(bcast_object=lambda value: value, get_rank=lambda: 0)
        notification_manager.register_listener(state)
        yield state
        notification_manager.remove_listener(state)

    def is_told(self, state: State) -> bool:
        """Whether its next commit is the last of this world; nobody skips the sync then."""
        try:
            state.check_host_updates()
        except HostsUpdatedInterrupt as interrupt:
            return interrupt.skip_sync is False
        return False

    def test_each_is_heard(self, meet: Meet, state: State) -> None:
        session = meet(EnterWorld(1, 0, 1))
        session.meeting.next_world()
        for serial in (1, 2):
            session.tell(AnotherWanted(1, serial))
            until(lambda: not state._host_messages.empty(), "it is heard")
            assert self.is_told(state)
            assert not self.is_told(state)

    def test_one_that_is_heard_during_a_reset_is_heard_again(self, meet: Meet, state: State) -> None:
        session = meet(EnterWorld(1, 0, 1))
        session.meeting.next_world()
        session.tell(AnotherWanted(1, 7))
        until(lambda: not state._host_messages.empty(), "it is heard")
        state.on_reset()
        assert not self.is_told(state)
        session.meeting.synced()
        assert self.is_told(state)

    def test_one_of_a_world_that_is_over_is_not(self, meet: Meet, state: State) -> None:
        session = meet(EnterWorld(2, 0, 1))
        session.meeting.next_world()
        session.tell(AnotherWanted(1, 7))
        session.tell(AnotherWanted(2, 8))
        until(lambda: not state._host_messages.empty(), "one is heard")
        session.meeting.synced()
        assert {state._host_messages.get()[0] for _ in range(2)} == {8.0}


class TestBroken:
    """Inside hvd.init() a rank waits two and a half minutes for a peer that was lost before it connected."""

    def test_what_was_opened_meanwhile_is_shut_down(self, meet: Meet) -> None:
        session = meet(EnterWorld(1, 0, 2))
        session.meeting.next_world()
        with session.meeting.connecting():
            pair = gloo_sockets()
            session.tell(WorldBroken(1))
            until(lambda: disconnected(pair[1]), "it waits no longer")
        for descriptor in pair:
            os.close(descriptor)

    def test_a_world_that_is_completed_is_left_alone(self, meet: Meet, c_sockets: tuple[int, int]) -> None:
        session = meet(EnterWorld(1, 0, 2))
        session.meeting.next_world()
        with session.meeting.connecting():
            pair = gloo_sockets()
        assert not disconnected(pair[1])
        session.tell(WorldBroken(1))
        until(lambda: disconnected(pair[1]), "a collective that waits there ends")
        assert not disconnected(c_sockets[1])
        for descriptor in pair:
            os.close(descriptor)
