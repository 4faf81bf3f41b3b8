"""Lines of a rank that go out together."""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import dataclass

import pytest

from elastic_runtime.protocol import batched_lines
from elastic_runtime.protocol.batched_lines import ROOM, BatchedLines

NEVER = 600.0
BOUND = 30.0


@dataclass
class Writes:
    """All that was written, each write as one."""

    each: queue.SimpleQueue[bytes]

    def next(self) -> bytes:
        return self.each.get(timeout=BOUND)

    def now(self) -> list[bytes]:
        return [self.each.get() for _ in range(self.each.qsize())]


@pytest.fixture
def writes() -> Writes:
    return Writes(queue.SimpleQueue())


@pytest.fixture
def lines(writes: Writes) -> BatchedLines:
    return BatchedLines(writes.each.put)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is due while a test runs."""
    monkeypatch.setattr(batched_lines, "BATCHING", NEVER)


def timers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if isinstance(each, threading.Timer)]


def test_the_first_goes_at_once_and_the_next_ones_together(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    assert writes.now() == [b"a\n"]
    lines.send_soon(b"b\n")
    lines.send_soon(b"c\n")
    together = writes.next()
    if together == b"b\n":  # This machine was so slow that the timer came between the two.
        together += writes.next()
    assert together == b"b\nc\n"


@pytest.mark.usefixtures("slow")
def test_what_is_sent_now_takes_along_what_waits(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    lines.send(b"c\n")
    lines.send(b"d\n")
    assert writes.now() == [b"a\n", b"b\nc\n", b"d\n"]
    lines.flush()


@pytest.mark.usefixtures("slow")
def test_the_end_sends_what_waits_and_leaves_no_thread(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    (timer,) = timers()
    lines.flush()
    timer.join(BOUND)
    assert (writes.now(), timers()) == ([b"a\n", b"b\n"], [])
    lines.flush()
    assert writes.now() == []


@pytest.mark.usefixtures("slow")
def test_what_waits_is_bounded(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    line = b"x" * 1000 + b"\n"
    for _ in range(ROOM // len(line) + 1):
        lines.send_soon(line)
    first, batch = writes.now()
    assert (first, len(batch)) == (b"a\n", (ROOM // len(line) + 1) * len(line))
    lines.flush()


@pytest.mark.usefixtures("slow")
def test_what_no_thread_can_be_started_for_is_sent_now(
    lines: BatchedLines, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refused)
    for line in (b"a\n", b"b\n", b"c\n"):
        lines.send_soon(line)
    assert writes.now() == [b"a\n", b"b\n", b"c\n"]


@pytest.mark.usefixtures("slow")
def test_a_signals_handler_sends_while_a_timer_is_started(
    lines: BatchedLines, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Timer.start

    def interrupted(timer: threading.Timer) -> None:
        start(timer)
        lines.send(b"of the handler\n")

    monkeypatch.setattr(threading.Timer, "start", interrupted)
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    assert writes.now() == [b"a\n", b"b\nof the handler\n"]
    lines.flush()


@pytest.mark.usefixtures("slow")
def test_a_fork_sends_nothing_of_its_parents(lines: BatchedLines, writes: Writes) -> None:
    lines.send_soon(b"a\n")
    lines.send_soon(b"b\n")
    writes.now()
    with lines._lock:  # As the timer's thread may hold it.
        child = os.fork()
        if child == 0:
            try:
                lines.send(b"of the child\n")
                os._exit(0 if writes.now() == [b"of the child\n"] else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lines.flush()
    assert writes.now() == [b"b\n"]
