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
        self._timer: threading.Timer | None = None
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(this()))

    def send(self, line: bytes) -> None:
        """Send it now, after those that wait."""
        with self._lock:
            self._write(self._taken() + line)

    def send_soon(self, line: bytes) -> None:
        """Send it within :data:`BATCHING`; the first one after a pause, now."""
        with self._lock:
            waiting = self._taken() + line
            wait = self._next - time.monotonic()
            if wait <= 0.0 or len(waiting) >= ROOM:
                self._next = time.monotonic() + BATCHING
                self._write(waiting)
                return
            self._waiting += waiting
            if self._timer is not None:
                return
            timer = self._timer = threading.Timer(wait, self._due)
        timer.daemon = True
        try:
            timer.start()  # Not with the lock: it waits for the thread, and a signal's handler may send meanwhile.
        except RuntimeError:  # No thread can be started: there are too many, or the interpreter ends.
            self._due()

    def flush(self) -> None:
        """Send those that wait."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if waiting := self._taken():
                self._write(waiting)

    def _due(self) -> None:
        with self._lock:
            self._timer = None
            self._next = time.monotonic() + BATCHING
            if waiting := self._taken():
                self._write(waiting)

    def _taken(self) -> bytes:
        waiting = bytes(self._waiting)
        self._waiting.clear()
        return waiting

    def forget(self) -> None:
        """In a fork: what waits is its parent's, whose timer's thread is not here, and may have held the lock."""
        self._lock, self._timer = threading.Lock(), None
        self._waiting.clear()


def _forget(lines: BatchedLines | None) -> None:
    if lines is not None:
        lines.forget()
