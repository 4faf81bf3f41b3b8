"""The ranks' rows of the table in :mod:`elastic_runtime.engines.horovod`, beside stock Horovod where one rank suffices.

All of them at once, installed in a real rank: ``tests/local/test_adaptations.py``.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import horovod.torch.mpi_ops
import pytest
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from elastic_runtime.engines import gloo_sockets as engine_sockets
from elastic_runtime.engines.gloo_sockets import cut, notice_silence, open_sockets
from elastic_runtime.engines.horovod import rank as adaptation
from elastic_runtime.engines.horovod.rank import cut_when_given_up, still_assigned
from elastic_runtime.errors import OwnershipLost
from tests.unit.runtime.driver_bench import SOON, Bench, bench, in_thread


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


class TestReset:
    def test_cuts_what_gloo_opened_and_nothing_of_pythons(
        self, horovod_calls: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, c_sockets: tuple[int, int]
    ) -> None:
        monkeypatch.setattr(adaptation, "still_assigned", lambda: True)
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        rank.init()
        rank.reset()
        (old, _), (new, _) = horovod_calls.c
        assert disconnected(old)
        assert not disconnected(new)
        assert not disconnected(c_sockets[0]), "it was there before"
        assert not any(disconnected(sock.fileno()) for pair in horovod_calls.python for sock in pair)

    def test_calls_its_hooks_while_the_old_world_is_connected(
        self, horovod_calls: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = horovod_calls.log
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        monkeypatch.setattr(adaptation, "before_reset", [lambda: log.append("hook")])
        monkeypatch.setattr(engine_sockets, "cut", lambda sockets, **_: log.append(f"cut {len(sockets)}"))
        monkeypatch.setattr(adaptation, "still_assigned", lambda: log.append("ask") or True)
        rank.init()
        rank.reset()
        assert log == ["init", "hook", "shutdown", "cut 2", "ask", "init"]

    def test_of_a_rank_that_was_taken_out_ends_it_with_success(
        self, horovod_calls: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(adaptation, "still_assigned", lambda: False)
        rank = adaptation.Rank(horovod.torch.mpi_ops)
        rank.init()
        with pytest.raises(SystemExit) as end:
            rank.reset()
        assert end.value.code == 0
        assert horovod_calls.log == ["init", "shutdown"]


def as_rank(host: str, ours: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ours.environment(host).items():
        monkeypatch.setenv(name, value)


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
        monkeypatch.setattr(adaptation, "_reset", lambda: None)

    def test_goes_from_world_to_world_and_says_when_it_is_over(self) -> None:
        state = TroubledState()
        assert adaptation.run(lambda state: state.commit() or "result")(state) == "result"
        assert state.log == ["sync", "commit", "on_reset", "sync", "commit", "on_run_end"]

    def test_has_nothing_to_sync_where_some_have_left_and_nobody_comes(self) -> None:
        state = TroubledState(leaving=True)
        adaptation.run(TroubledState.commit)(state)
        assert state.log == ["sync", "commit", "on_reset", "on_same_state", "commit", "on_run_end"]
        lost = TroubledState("on_reset", leaving=True)
        adaptation.run(TroubledState.commit)(lost)
        assert lost.log == ["sync", "commit", "on_reset", "restore", "on_reset", "sync", "commit", "on_run_end"]

    @pytest.mark.parametrize(
        ("trouble", "log"),
        [
            ("sync", "sync restore on_reset sync commit on_reset sync commit on_run_end"),
            ("on_reset", "sync commit on_reset restore on_reset sync commit on_run_end"),
            ("on_run_end", "sync commit on_reset sync commit on_run_end restore on_reset sync commit on_run_end"),
        ],
    )
    def test_recovers_from_a_loss_wherever_it_is(self, trouble: str, log: str) -> None:
        state = TroubledState(trouble)
        adaptation.run(TroubledState.commit)(state)
        assert " ".join(state.log) == log

    def test_any_other_error_ends_it(self) -> None:
        state = TroubledState()

        def train(_state: TroubledState) -> None:
            raise RuntimeError("a bug of the script")

        with pytest.raises(RuntimeError, match="a bug"):
            adaptation.run(train)(state)
        assert state.log == ["sync"]
        assert len(adaptation.while_waiting) == 0


class TestStillAssigned:
    def test_tells_who_stays_from_who_goes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with bench() as ours:
            ours.begin("a", "b")
            ours.push("a")
            as_rank("b", ours, monkeypatch)
            leaver = in_thread(still_assigned)
            ours.ready("a").result(SOON)
            assert leaver.result(SOON) is False
            as_rank("a", ours, monkeypatch)
            assert still_assigned() is True

    def test_has_hooks_called_while_it_waits_for_enough_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[None] = []
        twice = threading.Event()

        def hook() -> None:
            calls.append(None)
            if len(calls) == 2:
                twice.set()

        monkeypatch.setattr(adaptation, "while_waiting", [hook])
        with bench(minimum=2) as ours:
            ours.begin("a", "b")
            as_rank("a", ours, monkeypatch)
            waiter = in_thread(still_assigned)
            ours.exit("b", 1)
            ours.waiting.get(timeout=SOON)
            ours.push("a")
            assert twice.wait(SOON)
            assert not waiter.done()
            ours.push("a", "c")
            assert waiter.result(SOON) is True

    def test_ends_with_what_a_hook_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused() -> None:
            raise OwnershipLost("the run has a newer owner")

        monkeypatch.setattr(adaptation, "while_waiting", [refused])
        with bench(minimum=2) as ours:
            ours.begin("a", "b")
            as_rank("a", ours, monkeypatch)
            with pytest.raises(OwnershipLost):
                still_assigned()
            ours.exit("a", 1)
            ours.exit("b", 1)

    def test_without_a_launcher_there_is_no_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with bench() as ours:
            ours.begin("a")
            as_rank("a", ours, monkeypatch)
        with pytest.raises(ConnectionError, match="rendezvous is gone"):
            still_assigned()


class TestGivenUp:
    """Inside hvd.init() a rank waits two and a half minutes for a peer that was lost before it connected."""

    def test_what_was_opened_meanwhile_is_shut_down(
        self, monkeypatch: pytest.MonkeyPatch, c_sockets: tuple[int, int]
    ) -> None:
        opened = {c_sockets[0]: open_sockets()[c_sockets[0]]}
        with bench() as ours, socket.socket(fileno=os.dup(c_sockets[1])) as peer:
            ours.begin("a", "b")
            as_rank("a", ours, monkeypatch)
            with cut_when_given_up(lambda: opened):
                ours.driver.give_up_world()
                peer.settimeout(SOON)
                assert peer.recv(1) == b""
            ours.exit("a", 1)
            ours.exit("b", 1)

    def test_a_world_that_is_completed_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, c_sockets: tuple[int, int]
    ) -> None:
        opened = {c_sockets[0]: open_sockets()[c_sockets[0]]}
        with bench() as ours:
            ours.begin("a")
            as_rank("a", ours, monkeypatch)
            with cut_when_given_up(lambda: opened):
                pass
            ours.exit("a", 0)
        assert not disconnected(c_sockets[1])
