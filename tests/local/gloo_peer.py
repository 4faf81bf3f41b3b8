"""A real rank 0, and rank 1 as far as rank 0 can see: a test is its sockets, and what goes wrong with them."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from horovod.runner.http.http_server import RendezvousServer

CONNECTION_TIMEOUT = 25.0
"""Seconds; Gloo would give up after HOROVOD_GLOO_TIMEOUT_SECONDS, 30."""
ADDRESS = struct.Struct("=128sq16s16s")
"""Gloo's tcp::Address: sockaddr_storage, a sequence number, and what is said first there, and answered."""
KNOCK, ANSWER = b"knock".ljust(16), b"who is there?".ljust(16)
"""Of this peer."""


def listen(port: int, *, rank_connects: bool) -> socket.socket:
    """Listen where, compared with the port at which a rank does, it connects, or waits to be connected to."""
    rejected = []
    try:
        while True:
            listening = socket.create_server(("127.0.0.1", 0))
            if (socket.htons(port) > socket.htons(listening.getsockname()[1])) == rank_connects:
                return listening
            rejected.append(listening)
    finally:
        for each in rejected:
            each.close()


@dataclass
class Peer:
    """Rank 1 of two, as far as rank 0 can see."""

    port: int
    """Of the rendezvous."""
    rank: subprocess.Popen[str]

    def ask(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CONNECTION_TIMEOUT)
        try:
            connection.request(method, f"/global/{key}", body)
            answer = connection.getresponse()
            return answer.read() if answer.status == http.client.OK else None
        finally:
            connection.close()

    def address_of_rank(self) -> tuple[str, int]:
        """Where it listens for this peer."""
        return self.published()[0]

    def published(self) -> tuple[tuple[str, int], bytes, bytes]:
        """Where the rank listens for this peer; what it wants to hear there, and how it will answer."""
        value = None
        while value is None:
            value = self.ask("GET", "0")
        address, _, knock, answer = ADDRESS.unpack(value)
        return (socket.inet_ntoa(address[4:8]), int.from_bytes(address[2:4], "big")), knock, answer

    def listen(self, *, rank_connects: bool) -> socket.socket:
        """Listen where, compared with its own address, the rank connects, or waits to be connected to."""
        return listen(self.address_of_rank()[1], rank_connects=rank_connects)

    def publish(self, host: str, port: int) -> None:
        """Tell the rank where this peer is."""
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
        self.ask("PUT", "rank_1", b"elsewhere")
        self.ask("PUT", "1", ADDRESS.pack(address, -1, KNOCK, ANSWER))

    def be_knocked_at(self) -> socket.socket:
        """Have the rank connect and say who it is, and return this end of it."""
        with self.listen(rank_connects=True) as listening:
            self.publish(*listening.getsockname())
            listening.settimeout(CONNECTION_TIMEOUT)
            connection = listening.accept()[0]
        connection.settimeout(CONNECTION_TIMEOUT)
        assert connection.recv(len(KNOCK), socket.MSG_WAITALL) == KNOCK
        return connection

    def be_connected(self) -> socket.socket:
        """Have the rank connect, and know this peer."""
        connection = self.be_knocked_at()
        connection.sendall(ANSWER)
        return connection


@contextlib.contextmanager
def peer_of(script: str, **more: str) -> Iterator[Peer]:
    """Rank 0 runs that script, and meets its peer at the server of stock Horovod."""
    server = RendezvousServer()
    port = server.start()
    server.init([])
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
            yield Peer(port, rank)
        finally:
            rank.kill()
    server.stop()
    server._httpd.server_close()
