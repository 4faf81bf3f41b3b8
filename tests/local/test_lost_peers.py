"""A peer that misbehaves or is lost while Gloo talks to it: an error in the survivor's Python code, never its end.

A real rank, and a peer of which this test is both the sockets and the fault: each ends the rank with SIGABRT where the
amendment of ``images/trainer/patches`` is missing.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
import pytest

from elastic_runtime.engines.horovod.rendezvous import NEXT_ASSIGNMENT, ROLL_CALL
from elastic_runtime.engines.horovod.rendezvous_server import Handler, RendezvousServer
from tests.paced import until

ADAPTED = """
    from elastic_runtime.engines.horovod import rank
    rank.install()
    import horovod.torch as hvd

    hvd.init()
    print("in a world of", hvd.size())
"""
RANK = """
    import os
    import horovod.torch as hvd
    import torch

    try:
        hvd.init()
    except ValueError:
        print("raised")
    hvd.shutdown()
    os.environ["HOROVOD_SIZE"] = "1"
    hvd.init()
    print("again", hvd.allreduce(torch.ones(1)).item())
"""
PATIENCE = 25.0
"""Seconds; Gloo would give up after HOROVOD_GLOO_TIMEOUT_SECONDS, 30."""
ADDRESS_BYTES = 136
"""Of Gloo's tcp::Address: sockaddr_storage and a sequence number."""
PREAMBLE = struct.Struct("=6Q")
"""Of a message between Gloo's pairs: bytes in all, opcode, slot, offset, length, remote offset."""
SEND_TO_BUFFER, SEND_TO_UNBOUND_BUFFER, SEND_READY = 0, 1, 2


class NoWorlds(Handler):
    """Only keys and values."""

    def get(self, scope: str, key: str) -> Callable[[], bytes] | None:
        return None

    def put(self, scope: str, key: str, value: bytes, peer: str) -> bool:
        return False

    def finished(self, scope: str, key: str) -> None:
        pass


@dataclass
class Peer:
    """Rank 1 of two, as far as rank 0 can see."""

    server: RendezvousServer
    rank: subprocess.Popen[str]

    def ask(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        connection = http.client.HTTPConnection(*self.server.address, timeout=PATIENCE)
        try:
            connection.request(method, f"/global/{key}", body)
            answer = connection.getresponse()
            return answer.read() if answer.status == http.client.OK else None
        finally:
            connection.close()

    def address_of_rank(self) -> tuple[str, int]:
        """Where it listens for this peer."""
        value = None
        while value is None:
            value = self.ask("GET", "0")
        return socket.inet_ntoa(value[4:8]), int.from_bytes(value[2:4], "big")

    def listen(self, *, rank_connects: bool) -> socket.socket:
        """Listen where, compared with its own address, the rank connects, or waits to be connected to."""
        others = socket.htons(self.address_of_rank()[1])
        rejected = []
        try:
            while True:
                listening = socket.create_server(("127.0.0.1", 0))
                if (others > socket.htons(listening.getsockname()[1])) == rank_connects:
                    return listening
                rejected.append(listening)
        finally:
            for each in rejected:
                each.close()

    def publish(self, host: str, port: int) -> None:
        """Tell the rank where this peer is."""
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
        self.ask("PUT", "rank_1", b"elsewhere")
        self.ask("PUT", "1", address.ljust(ADDRESS_BYTES - 8, b"\0") + struct.pack("=q", -1))

    def be_connected(self) -> socket.socket:
        """Have the rank connect, and return this end of it."""
        with self.listen(rank_connects=True) as listening:
            self.publish(*listening.getsockname())
            listening.settimeout(PATIENCE)
            return listening.accept()[0]


class NextWorldAlone(NoWorlds):
    """Whoever comes back from the world of two is alone in the next."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def get(self, scope: str, key: str) -> Callable[[], bytes] | None:
        self.asked.append((scope, key))
        answers = {ROLL_CALL: b"go", NEXT_ASSIGNMENT: b"0,1,0,1,0,1", "rank_and_size": b"0,1,0,1,0,1"}
        return (lambda: answers[scope]) if scope in answers else None


@pytest.fixture
def peer() -> Iterator[Peer]:
    with peer_of(RANK, NoWorlds()) as made:
        yield made


@contextlib.contextmanager
def peer_of(script: str, handler: Handler, **more: str) -> Iterator[Peer]:
    """Rank 0 runs that script."""
    server = RendezvousServer("127.0.0.1")
    port = server.start(handler)
    environment = {
        **os.environ,
        **{f"HOROVOD_{name}": "0" for name in ("RANK", "LOCAL_RANK", "CROSS_RANK")},
        **{f"HOROVOD_{name}": "1" for name in ("LOCAL_SIZE", "CROSS_SIZE")},
        "HOROVOD_SIZE": "2",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        **more,
    }
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as rank:
        try:
            yield Peer(server, rank)
        finally:
            rank.kill()
    server.stop()


def message(opcode: int, slot: int = 0, length: int = 0) -> bytes:
    return PREAMBLE.pack(PREAMBLE.size + length, opcode, slot, 0, length, 0)


def sends_what_nobody_expects(peer: Peer) -> None:
    with peer.be_connected() as connection:
        connection.sendall(message(SEND_TO_UNBOUND_BUFFER, slot=4711, length=1024))
        assert_hung_up(connection)


def sends_more_than_is_expected(peer: Peer) -> None:
    """As a rank that has left one collective and begun another."""
    with peer.be_connected() as connection:
        connection.settimeout(PATIENCE)
        _, _, slot, *_ = PREAMBLE.unpack(connection.recv(PREAMBLE.size, socket.MSG_WAITALL))
        connection.sendall(message(SEND_READY, slot) + message(SEND_TO_UNBOUND_BUFFER, slot, length=1024))
        assert_hung_up(connection)


def is_lost_while_connected(peer: Peer) -> None:
    peer.be_connected().close()


def is_lost_before_it_is_connected_to(peer: Peer) -> None:
    with peer.listen(rank_connects=True) as listening:
        address = listening.getsockname()
    peer.publish(*address)


def is_lost_before_its_connection_is_accepted(peer: Peer) -> None:
    address = peer.address_of_rank()
    with peer.listen(rank_connects=False) as listening:
        peer.rank.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(peer.rank.pid).status() == psutil.STATUS_STOPPED, "stopped", PATIENCE)
        with socket.create_connection(address, timeout=PATIENCE) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets it
        peer.publish(*listening.getsockname())
        peer.rank.send_signal(signal.SIGCONT)


def assert_hung_up(connection: socket.socket) -> None:
    """Everything after the error of one pair is for Python code to decide: the connection is closed."""
    connection.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass


@pytest.mark.parametrize(
    "fault",
    [
        sends_what_nobody_expects,
        sends_more_than_is_expected,
        is_lost_while_connected,
        is_lost_before_it_is_connected_to,
        is_lost_before_its_connection_is_accepted,
    ],
)
def test_a_lost_peer_is_an_error_in_python(peer: Peer, fault: Callable[[Peer], None]) -> None:
    fault(peer)

    output, errors = peer.rank.communicate(timeout=PATIENCE)

    assert output.splitlines() == ["raised", "again 1.0"], errors
    assert "Horovod could not be initialized" in errors
    assert peer.rank.returncode == 0


def test_a_rank_does_not_wait_for_one_that_was_lost_before_it_connected() -> None:
    """By itself Gloo does, for 150 s."""
    handler = NextWorldAlone()
    with peer_of(ADAPTED, handler, HOROVOD_ELASTIC="1", HOROVOD_HOSTNAME="a") as peer:
        with peer.listen(rank_connects=False) as listening:
            peer.publish(*listening.getsockname())
        until(lambda: handler.asked.count(("global", "1")) == 2, "it knows where the peer is", PATIENCE)
        peer.server.refuse()  # as when the launcher gives the world up

        output, errors = peer.rank.communicate(timeout=PATIENCE)

    assert output == "in a world of 1\n", errors
