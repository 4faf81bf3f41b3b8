"""Lines of a rank that go out together."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
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
def lines(writes: Writes) -> Iterator[BatchedLines]:
    yield (made := BatchedLines(writes.each.put))
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
