"""A peer that misbehaves or is lost while Gloo talks to it: an error in the survivor's Python code, never its end.

A real rank, and a peer of which this test is both the sockets and the fault: each ends the rank with SIGABRT where the
amendment of ``images/trainer/patches`` is missing.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import struct
import subprocess
import sys
import textwrap
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from elastic_runtime.engines.horovod.store import unpacked
from elastic_runtime.engines.torch import messages
from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.rank_link import EngineWord, decode_rank_message, encode_rank_message
from elastic_runtime.protocol.rank_sockets import RANK_FD
from tests.local.gloo_peer import ADDRESS, ANSWER, CONNECTION_TIMEOUT, KNOCK, Peer, listen, peer_of
from tests.paced import SCRIPTS

T = TypeVar("T")
COLD = 100.0
"""Seconds for a rank that has to import everything; Gloo would wait longer."""

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


@pytest.fixture
def peer() -> Iterator[Peer]:
    with peer_of(RANK) as made:
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


class Session:
    """Of one real rank, which this test tells its worlds.

    Args:
        link: this end of its link.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link, self._lines, self._heard = link, LineReader(), deque[messages.RankWord]()
        link.settimeout(COLD)

    def hear(self, kind: type[T]) -> T:
        """The next word of that kind."""
        while True:
            while self._heard:
                if isinstance(word := self._heard.popleft(), kind):
                    return word
            for plain in self._lines.feed(self._link.recv(65536)):
                if isinstance(said := decode_rank_message(plain), EngineWord):
                    self._heard.append(messages.read_rank_word(said.word))

    def tell(self, word: messages.SessionWord) -> None:
        self._link.sendall(encode_rank_message(EngineWord(messages.write_session_word(word))))


@pytest.mark.parametrize("told", ["addresses", "nothing"])
def test_a_rank_does_not_wait_for_one_that_was_lost_before_it_connected(told: str) -> None:
    """By itself Gloo does, for 150 s."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        interface = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo"}
        elastic = {"HOROVOD_ELASTIC": "1", "HOROVOD_HOSTNAME": "a", RANK_FD: str(theirs.fileno())}
        rank = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(ADAPTED)],
            env=os.environ | interface | elastic, pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with rank:
            session = Session(ours)
            session.hear(messages.ReadyForWorld)
            session.tell(messages.EnterWorld(1, 0, 2))
            offer = session.hear(messages.Offer)
            port = int.from_bytes(unpacked(offer.values[0])[2:4], "big")
            if told == "addresses":
                with listen(port, rank_connects=False) as listening:
                    address = packed(*listening.getsockname())
                session.tell(messages.Offered(1, offer.name, 0, (address,)))
            session.tell(messages.WorldBroken(1))
            session.hear(messages.ReadyForWorld)
            session.tell(messages.EnterWorld(2, 0, 1))
            output, errors = rank.communicate(timeout=COLD)
    assert output == "in a world of 1\n", errors


def packed(host: str, port: int) -> str:
    """An address as ranks offer it."""
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
    return base64.b64encode(zlib.compress(ADDRESS.pack(address, -1, KNOCK, ANSWER))).decode()


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
