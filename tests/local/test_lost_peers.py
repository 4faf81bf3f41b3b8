"""A peer that misbehaves or is lost while Gloo talks to it: an error in the survivor's Python code, never its end.

A real rank, and a peer of which this test is both the sockets and the fault: each ends the rank with SIGABRT where the
amendment of ``images/trainer/patches`` is missing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from elastic_runtime.engines.horovod.rendezvous_server import NEXT_ASSIGNMENT, ROLL_CALL
from tests.local.gloo_peer import CONNECTION_TIMEOUT, KNOCK, NoWorlds, Peer, peer_of
from tests.paced import SCRIPTS, until

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
PREAMBLE = struct.Struct("=6Q")
"""Of a message between Gloo's pairs: bytes in all, opcode, slot, offset, length, remote offset."""
SEND_TO_BUFFER, SEND_TO_UNBOUND_BUFFER, SEND_READY = 0, 1, 2


class NextWorldAlone(NoWorlds):
    """Whoever comes back from the world of two is alone in the next."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def get(self, scope: str, key: str, host: str) -> Callable[[], bytes] | None:
        self.asked.append((scope, key))
        answers = {ROLL_CALL: b"go", NEXT_ASSIGNMENT: b"0,1,0,1,0,1", "rank_and_size": b"0,1,0,1,0,1"}
        return (lambda: answers[scope]) if scope in answers else None


@pytest.fixture
def peer() -> Iterator[Peer]:
    with peer_of(RANK, NoWorlds()) as made:
        yield made


def message(opcode: int, slot: int = 0, length: int = 0) -> bytes:
    return PREAMBLE.pack(PREAMBLE.size + length, opcode, slot, 0, length, 0)


def sends_what_nobody_expects(peer: Peer) -> None:
    with peer.be_connected() as connection:
        connection.sendall(message(SEND_TO_UNBOUND_BUFFER, slot=4711, length=1024))
        assert_disconnected(connection)


def sends_more_than_is_expected(peer: Peer) -> None:
    """As a rank that has left one collective and begun another."""
    with peer.be_connected() as connection:
        connection.settimeout(CONNECTION_TIMEOUT)
        _, _, slot, *_ = PREAMBLE.unpack(connection.recv(PREAMBLE.size, socket.MSG_WAITALL))
        connection.sendall(message(SEND_READY, slot) + message(SEND_TO_UNBOUND_BUFFER, slot, length=1024))
        assert_disconnected(connection)


def is_lost_while_connected(peer: Peer) -> None:
    peer.be_connected().close()


def is_lost_before_it_answers(peer: Peer) -> None:
    peer.be_knocked_at().close()


def is_somebody_else(peer: Peer) -> None:
    with peer.be_knocked_at() as connection:
        connection.sendall(KNOCK)
        assert_disconnected(connection)


def is_lost_before_it_is_connected_to(peer: Peer) -> None:
    with peer.listen(rank_connects=True) as listening:
        address = listening.getsockname()
    peer.publish(*address)


def assert_disconnected(connection: socket.socket) -> None:
    """Everything after the error of one pair is for Python code to decide: the connection is closed."""
    connection.settimeout(CONNECTION_TIMEOUT)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass


@pytest.mark.parametrize(
    "fault",
    [
        sends_what_nobody_expects,
        sends_more_than_is_expected,
        is_lost_while_connected,
        is_lost_before_it_answers,
        is_somebody_else,
        is_lost_before_it_is_connected_to,
    ],
)
def test_a_lost_peer_is_an_error_in_python(peer: Peer, fault: Callable[[Peer], None]) -> None:
    fault(peer)

    output, errors = peer.rank.communicate(timeout=CONNECTION_TIMEOUT)

    assert output.splitlines() == ["raised", "again 1.0"], errors
    assert "Horovod could not be initialized" in errors
    assert peer.rank.returncode == 0


def test_a_rank_does_not_wait_for_one_that_was_lost_before_it_connected() -> None:
    """By itself Gloo does, for 150 s."""
    handler = NextWorldAlone()
    with peer_of(ADAPTED, handler, HOROVOD_ELASTIC="1", HOROVOD_HOSTNAME="a") as peer:
        with peer.listen(rank_connects=False) as listening:
            peer.publish(*listening.getsockname())
        until(lambda: handler.asked.count(("global", "1")) == 2, "it knows where the peer is", CONNECTION_TIMEOUT)
        peer.server.refuse()  # as when the launcher gives the world up

        output, errors = peer.rank.communicate(timeout=CONNECTION_TIMEOUT)

    assert output == "in a world of 1\n", errors


def test_a_collective_that_is_begun_while_horovod_ends_is_an_error_in_python() -> None:
    """Upstream, one that comes after the last look for those that wait is answered by nobody."""
    alone = {
        f"HOROVOD_{name}_{what}": value for name in ("LOCAL", "CROSS") for what, value in (("RANK", "0"), ("SIZE", "1"))
    }
    alone |= {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    alone |= {"HOROVOD_HOSTNAME": "localhost", "HOROVOD_CYCLE_TIME": "0.1"}
    command = [sys.executable, str(SCRIPTS / "begun_late.py"), "100"]
    ended = subprocess.run(command, env=os.environ | alone, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.stdout, ended.returncode) == ("all have ended\n", 0), ended.stderr
