"""Lines of a rank that go out together."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from elastic_runtime.protocol import batched_lines
from elastic_runtime.protocol.batched_lines import ROOM, BatchedLines

NEVER = 600.0
BOUND = 30.0


def never_fails() -> None:
    raise AssertionError("nothing has failed")


def in_time(act: Callable[[], None]) -> None:
    """Do it in a thread of its own, which a deadlock would not end."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(BOUND)
    assert not thread.is_alive()


@dataclass
class Writes:
    """All that was written, each write as one."""

    each: queue.SimpleQueue[bytes]

    def write(self, lines: bytes) -> int:
        self.each.put(lines)
        return len(lines)

    def next(self) -> bytes:
        return self.each.get(timeout=BOUND)

    def now(self) -> list[bytes]:
        return [self.each.get() for _ in range(self.each.qsize())]


@pytest.fixture
def writes() -> Writes:
    return Writes(queue.SimpleQueue())


@pytest.fixture
def lines(writes: Writes) -> Iterator[BatchedLines]:
    yield (made := BatchedLines(lambda: writes.write, never_fails))
    made.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is due while a test runs."""
    monkeypatch.setattr(batched_lines, "BATCHING", NEVER)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "batched-lines"]


def test_the_first_goes_at_once_and_the_next_ones_together(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    assert writes.now() == [b"a\n"]
    lines.send_soon(b"b\n")
    lines.send_soon(b"c\n")
    together = writes.next()
    if together == b"b\n":  # This machine was so slow that it was due between the two.
        together += writes.next()
    assert together == b"b\nc\n"


@pytest.mark.usefixtures("slow")
def test_what_is_sent_now_takes_along_what_waits(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    lines.send(b"c\n")
    lines.send(b"d\n")
    assert writes.now() == [b"a\n", b"b\nc\n", b"d\n"]
    lines.close()


@pytest.mark.usefixtures("slow")
def test_the_end_sends_what_waits_and_leaves_no_thread(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    (thread,) = threads()
    lines.close()
    thread.join(BOUND)
    assert (writes.now(), threads()) == ([b"a\n", b"b\n"], [])
    lines.close()
    assert writes.now() == []


@pytest.mark.usefixtures("slow")
def test_what_waits_is_bounded(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    line = b"x" * 1000 + b"\n"
    for _ in range(ROOM // len(line) + 1):
        lines.send_soon(line)
    first, batch = writes.now()
    assert (first, len(batch)) == (b"a\n", (ROOM // len(line) + 1) * len(line))
    lines.close()


@pytest.mark.usefixtures("slow")
def test_what_no_thread_can_be_started_for_is_sent_now(
    lines: BatchedLines, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    for line in (b"a\n", b"b\n", b"c\n"):
        lines.send_soon(line)
    assert writes.now() == [b"a\n", b"b\n", b"c\n"]


@pytest.mark.usefixtures("slow")
def test_a_signals_handler_sends_while_the_thread_is_started(
    lines: BatchedLines, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        lines.send(b"of the handler\n")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    assert writes.now() == [b"a\n", b"b\nof the handler\n"]
    lines.close()


@pytest.mark.usefixtures("slow")
def test_a_fork_sends_nothing_of_its_parents(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    writes.now()
    with lines._lock:  # As the other thread may hold it.
        child = os.fork()
        if child == 0:
            try:
                lines.send(b"of the child\n")
                os._exit(0 if writes.now() == [b"of the child\n"] else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lines.close()
    assert writes.now() == [b"b\n"]


def test_a_handler_in_the_middle_of_a_write_leaves_its_lines_to_it(writes: Writes) -> None:
    handled: list[bool] = []

    def write(data: bytes) -> int:
        if not handled:
            handled.append(True)
            sender.send(b"of the handler\n")
            sender.send_soon(b"and more\n")
        writes.write(data[:3])
        return len(data[:3])

    sender = BatchedLines(lambda: write, never_fails)
    in_time(lambda: sender.send(b"a line\n"))
    assert b"".join(writes.now()) == b"a line\nof the handler\nand more\n"
    in_time(sender.close)


def test_a_line_that_an_exception_has_cut_is_completed_by_the_next_write() -> None:
    """``sys.exit`` in a handler, while the agent reads nothing for a moment."""
    ours, agents = socket.socketpair()
    lines, long = BatchedLines(lambda: ours.send, never_fails), b"x" * 2_000_000 + b"\n"
    received = bytearray()

    def interrupt(main: int) -> None:
        agents.recv(1, socket.MSG_PEEK)
        time.sleep(0.1)  # It waits for room now; that it does not yet would make no difference.
        signal.pthread_kill(main, signal.SIGUSR1)

    def receive() -> None:
        while data := agents.recv(1 << 20):
            received.extend(data)

    before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
    try:
        threading.Thread(target=interrupt, args=(threading.get_ident(),)).start()
        with pytest.raises(SystemExit):
            lines.send(long)
    finally:
        signal.signal(signal.SIGUSR1, before)
    reader = threading.Thread(target=receive)
    reader.start()
    with ours:
        lines.send(b"next\n")
        lines.close()
    reader.join(BOUND)
    agents.close()
    assert received == long + b"next\n"


def test_what_nobody_takes_any_more_is_dropped() -> None:
    writers: list[Callable[[bytes], int]] = []

    def broken(_lines: bytes) -> int:
        raise BrokenPipeError

    writers.append(broken)
    lines = BatchedLines(lambda: writers[0] if writers else None, writers.clear)
    in_time(lambda: lines.send(b"a\n"))
    in_time(lambda: lines.send(b"b\n"))
    assert not writers
