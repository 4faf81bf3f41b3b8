"""Strangers who hold connections to whatever listens, each in a way of its own: :func:`strangers`.

They are a program of their own, so that what they cost is not the tested side's: ``python -m tests.strangers COUNT
ADDRESS:PORT...`` prints a line of JSON a second, and ends with its standard input. One that is cut off comes back a
second later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import ssl
import subprocess
import sys
import threading
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BACK = 1.0
"""Seconds until one that was cut off, or refused, comes again."""
DRIP = 0.5
"""Seconds between two bytes."""


def _client_hello() -> bytes:
    begun = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), begun, server_hostname="x").do_handshake()
    return begun.read()


HELLO = _client_hello()
"""What one who begins TLS sends first."""


async def say_nothing(reader: Reader, _: Writer) -> None:
    """Until the other side hangs up."""
    await reader.read()


async def stop_half_way(reader: Reader, writer: Writer) -> None:
    """A handshake or a request that is begun and not ended."""
    writer.write(random.choice([HELLO[:11], b"GET /rank_and_size/worker-0:0 HTTP/1.1\r\nHost", b"PUT /global/0 HTT"]))
    await reader.read()


async def begin_tls(reader: Reader, writer: Writer) -> None:
    """Have the other side do its half of a handshake, which is the dear one."""
    writer.write(HELLO)
    while await reader.read(65536):
        pass


async def drip(_: Reader, writer: Writer) -> None:
    """A byte now and then."""
    while True:
        writer.write(random.choice([b"G", b"\x16", b"a", b"\r\n"]))
        await writer.drain()
        await asyncio.sleep(DRIP)


async def talk_nonsense(reader: Reader, writer: Writer) -> None:
    """Some kilobytes of noise."""
    writer.write(random.randbytes(random.randrange(1, 20_000)))
    await writer.drain()
    await reader.read()


async def ask(reader: Reader, writer: Writer) -> None:
    """A whole request, of one who knows the protocol but no secret."""
    path = random.choice(
        ["/rank_and_size/worker-0:0", "/global/0", "/worker_addresses/worker-0:0", "/next_assignment/x:0"]
    )
    body = b"x" * random.randrange(1000)
    verb = random.choice(["GET", "PUT", "DELETE"])
    writer.write(f"{verb} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await reader.read()


WAYS: Sequence[Callable[[Reader, Writer], Awaitable[None]]] = (
    say_nothing,
    stop_half_way,
    begin_tls,
    drip,
    talk_nonsense,
    ask,
)


class Crowd:
    """All of them.

    Args:
        places: addresses and ports.
    """

    def __init__(self, places: Sequence[tuple[str, int]]) -> None:
        self._places = places
        self.held = 0
        """Connections at present."""
        self.made = 0

    async def one(self, number: int) -> None:
        """A stranger, until cancelled."""
        way, place = WAYS[number % len(WAYS)], self._places[number // len(WAYS) % len(self._places)]
        while True:
            await self._visit(way, place)
            await asyncio.sleep(BACK * random.uniform(0.5, 1.5))

    async def _visit(self, way: Callable[[Reader, Writer], Awaitable[None]], place: tuple[str, int]) -> None:
        try:
            reader, writer = await asyncio.open_connection(*place)
        except OSError:
            return
        self.held += 1
        self.made += 1
        try:
            with contextlib.suppress(OSError):
                await way(reader, writer)
        finally:
            self.held -= 1
            writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Seen:
    """What they say of themselves."""

    held: int
    """Connections at present."""
    made: int
    """So far."""


@contextmanager
def strangers(count: int, places: Sequence[tuple[str, int]]) -> Iterator[list[Seen]]:
    """So many are there meanwhile; what they say of themselves, a second each, is the list's newest element."""
    words = (str(count), *(f"{address}:{port}" for address, port in places))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.strangers", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    seen: list[Seen] = []
    lines = process.stdout
    hearing = threading.Thread(target=lambda: seen.extend(Seen(**json.loads(line)) for line in lines), name="strangers")
    hearing.start()
    try:
        yield seen
    finally:
        process.stdin.close()
        process.wait()
        hearing.join()
        lines.close()


async def main(count: int, places: Sequence[tuple[str, int]]) -> None:
    """Until standard input ends."""
    crowd = Crowd(places)
    tasks = [asyncio.create_task(crowd.one(number)) for number in range(count)]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not ended.done():
        print(json.dumps({"held": crowd.held, "made": crowd.made}), flush=True)
        await asyncio.wait([ended], timeout=1.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _stand_back() -> None:
    """On other machines they would not compete for this one's cores.

    Where Linux groups processes by session (``sched_autogroup_enabled``, sched(7)), the session's own value counts.
    """
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _place(word: str) -> tuple[str, int]:
    address, _, port = word.rpartition(":")
    return address, int(port)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _stand_back()
    asyncio.run(main(int(sys.argv[1]), [_place(word) for word in sys.argv[2:]]))
