"""Lines that may wait a moment go out together: each write wakes who reads it, and costs more than what is in it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

BATCHING = 0.1
"""Seconds from one write of lines that may wait to the next."""
ROOM = 32768
"""Bytes that wait, at most."""


class BatchedLines:
    """Sends lines in the order in which they were given; from any thread.

    Args:
        write: sends all bytes, or raises nothing; called by one thread at a time.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write, self._lock = write, threading.Lock()
        self._waiting = bytearray()
        self._next = 0.0
        """When lines that may wait are due again, by the monotonic clock."""
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        """Sends what waits when it is due. One for all batches: to start one waits for a turn on crowded cores."""
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(this()))

    def send(self, line: bytes) -> None:
        """Send it now, after those that wait."""
        with self._lock:
            self._write(self._taken() + line)

    def send_soon(self, line: bytes) -> None:
        """Send it within :data:`BATCHING`; the first one after a pause, now."""
        with self._lock:
            self._waiting += line
            if time.monotonic() >= self._next or len(self._waiting) >= ROOM:
                self._flush()
                return
        self._wake.set()
        if self._thread is None:
            self._thread = thread = threading.Thread(
                target=self._send_when_due, args=(self._over,), name="batched-lines", daemon=True
            )
            try:
                thread.start()  # Not with the lock: it waits for the thread, and a signal's handler may send meanwhile.
            except RuntimeError:  # There are too many, or the interpreter ends.
                self._thread = None
                with self._lock:
                    self._flush()

    def close(self) -> None:
        """Send those that wait, and end the thread."""
        self._over.set()
        self._wake.set()
        self._over, self._thread = threading.Event(), None
        with self._lock:
            self._flush()

    def forget(self) -> None:
        """In a fork: what waits is its parent's, whose thread is not here, and may have held the lock."""
        self._lock, self._wake, self._over, self._thread = threading.Lock(), threading.Event(), threading.Event(), None
        self._waiting.clear()

    def _send_when_due(self, over: threading.Event) -> None:
        while not over.is_set():
            self._wake.wait()
            self._wake.clear()
            over.wait(max(0.0, self._next - time.monotonic()))
            with self._lock:
                self._flush()

    def _flush(self) -> None:
        self._next = time.monotonic() + BATCHING
        if waiting := self._taken():
            self._write(waiting)

    def _taken(self) -> bytes:
        """What waits, and nothing waits any more."""
        waiting = bytes(self._waiting)
        self._waiting.clear()
        return waiting


def _forget(lines: BatchedLines | None) -> None:
    if lines is not None:
        lines.forget()
