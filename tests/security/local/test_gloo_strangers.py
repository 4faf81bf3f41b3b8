"""Strangers who connect to real ranks, and to their rendezvous, while the world forms: it forms of its ranks alone."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.local.gloo_peer import ADDRESS, CONNECTION_TIMEOUT, Peer, peer_of
from tests.paced import until
from tests.unit.runtime.linked_ranks import linked_ranks

pytestmark = pytest.mark.timeout(300)
INIT = """
    import horovod.torch as hvd

    try:
        hvd.init()
    except ValueError:
        print("raised")
"""
TRAINING = """
    import horovod.torch as hvd
    import torch

    @hvd.elastic.run
    def train(state):
        while state.step < 100:
            state.step += 1
            state.weights += hvd.allreduce(torch.full((3,), float(state.step * (1 + hvd.rank()))), op=hvd.Sum)
            state.commit()

    hvd.init()
    state = hvd.elastic.TorchState(step=0, weights=torch.zeros(3))
    train(state)
    print(hvd.size(), state.weights.tolist())
"""
TRAINED = "2 [15150.0, 15150.0, 15150.0]\n"


def halves(knock: bytes) -> Iterator[bytes]:
    """What strangers say."""
    return itertools.cycle([b"", knock[:8], b"\0" * 16, os.urandom(16), os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n"])


@pytest.fixture
def peer() -> Iterator[Peer]:
    with peer_of(INIT) as made:
        yield made


def test_a_pair_goes_on_waiting_for_its_peer(peer: Peer) -> None:
    """Fifty strangers, of whom some have guessed nearly everything."""
    address, knock, expected = peer.published()
    assert len(set(knock + expected)) > 16, "not random"
    nearly = bytes([*knock[:-1], knock[-1] ^ 1])
    with contextlib.ExitStack() as stack:
        strangers = []
        for said in itertools.islice(itertools.chain([nearly, expected], halves(knock)), 50):
            stranger = stack.enter_context(socket.create_connection(address, timeout=CONNECTION_TIMEOUT))
            stranger.sendall(said)
            if said:  # The kernel forgets others without a word.
                strangers.append(stranger)
        connection = stack.enter_context(socket.create_connection(address, timeout=CONNECTION_TIMEOUT))
        connection.sendall(knock[:3])
        connection.sendall(knock[3:])
        assert connection.recv(16, socket.MSG_WAITALL) == expected
        for stranger in strangers:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
        assert peer.rank.poll() is None
        opened = [
            each for each in psutil.Process(peer.rank.pid).net_connections("tcp") if each.laddr.port == address[1]
        ]
        assert len(opened) == 1, "strangers are kept"


def test_a_rank_has_few_strangers_waiting(peer: Peer) -> None:
    address, knock, _ = peer.published()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stranger = stack.enter_context(socket.create_connection(address, timeout=CONNECTION_TIMEOUT))
            stranger.sendall(knock[:8])

        def kept() -> bool:
            connected = psutil.Process(peer.rank.pid).net_connections("tcp")
            return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr[:2] == address for each in connected) == 8

        until(kept, "the newest eight", CONNECTION_TIMEOUT)


def test_a_rank_tells_its_peer_from_who_has_taken_its_place(peer: Peer) -> None:
    """The port of a rank that was lost is anybody's."""
    with peer.be_knocked_at() as connection:
        connection.sendall(os.urandom(16))
        output, errors = peer.rank.communicate(timeout=CONNECTION_TIMEOUT)
    assert output == "raised\n"
    assert "No answer of the peer" in errors


class Strangers:
    """Connect to wherever these processes listen, and to their rendezvous, as often as they can."""

    def __init__(self) -> None:
        self.process_of: Callable[[], list[int]] = list
        self.hosts: set[str] = set()
        """Addresses on which ranks listened."""
        self.connections = self.refused = 0
        self.trap = socket.create_server(("127.0.0.1", 0))
        self.trap.setblocking(False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attack, name="strangers")
        self._thread.start()

    def _attack(self) -> None:
        kept: list[socket.socket] = []
        says = halves(b"\0" * 16)
        while not self._over.is_set():
            for address in set(self._listening()):
                self.hosts.add(address[0])
                with contextlib.suppress(OSError):
                    kept.append(socket.create_connection(address, timeout=CONNECTION_TIMEOUT))
                    kept[-1].sendall(next(says))
                    self.connections += 1
                self._write(address)
            while len(kept) > 64:
                kept.pop(0).close()
        for each in kept:
            each.close()

    def _listening(self) -> Iterator[tuple[str, int]]:
        for pid in self.process_of():
            with contextlib.suppress(psutil.Error):
                for each in psutil.Process(pid).net_connections("tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        yield each.laddr

    def _write(self, where: tuple[str, int]) -> None:
        """Come to a rendezvous, if that is one, as its rank, who gives the others its address, and learns theirs."""
        host, port = self.trap.getsockname()
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
        value = ADDRESS.pack(address, -1, b"", b"")
        for method, path in (("PUT", "/global/0"), ("GET", "/global/1"), ("GET", "/rank_and_size/b:0")):
            connection = http.client.HTTPConnection(*where, timeout=0.3)
            with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
                connection.request(method, path, value)
                self.refused += connection.getresponse().status == 403

    def trapped(self) -> bool:
        """Whether somebody has called where he was lured to."""
        try:
            self.trap.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.trap.close()


@contextlib.contextmanager
def strangers() -> Iterator[Strangers]:
    made = Strangers()
    try:
        yield made
    finally:
        made.close()


def test_a_world_forms_and_trains_among_strangers() -> None:
    with linked_ranks(TRAINING) as ours, strangers() as others:
        others.process_of = lambda: [each.pid for each in list(ours.processes.values())]
        ours.hold("b")
        ours.open("a", "b")
        until(lambda: others.connections > 20, "strangers are at rank 0, which waits for rank 1", 50.0)
        ours.do(ours.let_hear, "b")
        assert ours.worlds.get(timeout=2 * CONNECTION_TIMEOUT) == ["a", "b"]
        outputs = [ours.output(rank_id) for rank_id in ("a", "b")]

        assert [output for output, _ in outputs] == [TRAINED, TRAINED], outputs
        assert not others.trapped()
        assert others.hosts == {"127.0.0.1"}, "ranks listen elsewhere, too"
        assert others.refused > 20
        assert ours.worlds.empty(), "the world has broken"


def test_ranks_listen_nowhere_once_they_train() -> None:
    with linked_ranks(TRAINING) as ours:
        ours.open("a")
        ours.worlds.get(timeout=CONNECTION_TIMEOUT)
        listening = [each for each in psutil.Process(ours.processes["a"].pid).net_connections() if not each.raddr]
        assert [each.laddr for each in listening] == []
        ours.output("a")
