"""Lines that may wait a moment go out together: each write wakes who reads it, and costs more than what is in it."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable

from elastic_runtime.at_exit import AtExit

BATCHING = 0.1
"""Seconds from one write of lines that may wait to the next."""
ROOM = 32768
"""Bytes that wait, at most."""


class BatchedLines:
    """Sends lines in the order in which they were given; from any thread, and from handlers of signals.

    A handler may run in the middle of a write of its own thread, in which it cannot wait for that. So it leaves its
    line to that write, which goes on until nothing waits. A handler may also raise, as ``sys.exit`` does: what a write
    has left of a line goes out first with the next one.

    Args:
        writer: returns a builtin that sends some of the bytes and returns how many, as a socket's ``send``; None:
            nobody listens, and what waits is dropped.
        failed: called if that has raised OSError; the next ``writer()`` is another one then, or None.
    """

    def __init__(self, writer: Callable[[], Callable[[bytes], int] | None], failed: Callable[[], None]) -> None:
        self._writer, self._failed = writer, failed
        self._lock = threading.RLock()
        self._waiting = bytearray()
        """What is not sent yet, but for the first bytes of it, as many as ``_sent``."""
        self._sent: list[int] = []
        self._writes = False
        """The thread that has the lock is in a write."""
        self._next = 0.0
        """When lines that may wait are due again, by the monotonic clock."""
        self._wake, self._is_awake = queue.SimpleQueue[bool](), False
        """For the thread: True: there are lines. False: it is over. An Event's lock could be held by a handler's own
        thread."""
        self._thread: threading.Thread | None = None
        """Sends what waits when it is due. One for all batches: to start one waits for a turn on crowded cores."""
        self._at_exit = AtExit(self._end)
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(this()))

    def send(self, line: bytes) -> None:
        """Send it now, after those that wait."""
        with self._lock:
            self._waiting += line
            self._write()

    def send_soon(self, line: bytes) -> None:
        """Send it within :data:`BATCHING`; the first one after a pause, now."""
        with self._lock:
            self._waiting += line
            if time.monotonic() >= self._next or len(self._waiting) >= ROOM:
                self._flush()
                return
            if not self._is_awake:
                self._wake.put(True)
                self._is_awake = True
        if self._thread is None:
            self._at_exit.ask()
            self._thread = thread = threading.Thread(
                target=self._send_when_due, args=(self._wake,), name="batched-lines", daemon=True
            )
            try:
                thread.start()  # Not with the lock: it waits for the thread, and a signal's handler may send meanwhile.
            except RuntimeError:  # There are too many, or the interpreter ends.
                self._thread = None
                with self._lock:
                    self._flush()

    def close(self) -> None:
        """Send those that wait, and end the thread."""
        self._at_exit.cancel()
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._wake.put(False)
            self._renew_thread()
            self._flush()

    def forget(self) -> None:
        """In a fork: what waits is its parent's, whose thread is not here, and may have held the lock."""
        self._lock, self._writes = threading.RLock(), False
        self._waiting, self._sent = bytearray(), []
        self._renew_thread()

    def _renew_thread(self) -> None:
        self._wake, self._is_awake, self._thread = queue.SimpleQueue(), False, None

    def _send_when_due(self, wake: queue.SimpleQueue[bool]) -> None:
        while wake.get():
            with contextlib.suppress(queue.Empty):
                while (pause := self._next - time.monotonic()) > 0:
                    if not wake.get(timeout=pause):
                        return
            with self._lock:
                if wake is self._wake:
                    self._is_awake = False
                self._flush()

    def _flush(self) -> None:
        self._next = time.monotonic() + BATCHING
        self._write()

    def _write(self) -> None:
        """With the lock."""
        if self._writes:
            return  # This is a handler of a signal: the write that it has interrupted goes on with its line.
        self._writes = True
        try:
            while self._left():
                if (write := self._writer()) is None:
                    self._waiting.clear()
                    return
                try:
                    # A handler that raises runs when a call of Python's has returned, and the number would be lost.
                    self._sent.extend(map(write, (bytes(self._waiting),)))
                except OSError:
                    self._failed()
        finally:
            self._writes = False

    def _left(self) -> bool:
        """Whether there is something to send, without what was sent."""
        if self._sent:
            # No calls in these two lines, or a handler that raises could come between them.
            del self._waiting[: self._sent[0]]
            self._sent = []
        return bool(self._waiting)


def _forget(lines: BatchedLines | None) -> None:
    if lines is not None:
        lines.forget()
