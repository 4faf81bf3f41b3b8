"""Threads that work off a queue, also while the interpreter ends.

An executor of :mod:`concurrent.futures` takes nothing more once the main thread has ended. But that is when a rank that
was told to leave writes its last checkpoint.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Senders:
    """At most so many threads, started when there is work for them.

    Args:
        most: threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have it done, by one of the threads; where none can be started any more, here and now."""
        future: Future[T] = Future()
        self._work.put((future, work))
        if len(self._threads) < self._most:
            # A daemon: should nobody close this, it must not keep the process.
            thread = threading.Thread(target=self._run, name="upload", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # from Python 3.12 on there are no new threads at the very end
                self._work.put(None)
                self._run()
            else:
                self._threads.append(thread)
        return future

    def close(self) -> None:
        """Wait until everything is done, and the threads have ended."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def leave(self) -> None:
        """Have the threads end when they are done, without waiting for that."""
        for _ in self._threads:
            self._work.put(None)
        self._threads.clear()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # whoever asks for the result gets it, as from an executor
                future.set_exception(error)
