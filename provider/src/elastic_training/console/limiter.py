"""Limits of the page's requests in an API server: a few threads of their own, and a few seconds each.

Airflow's own routes, and FastAPI for all that is not asynchronous, share 40 threads of a process. Nothing of the page
runs in these: a place, a store or a database that is silent would take them all.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from elastic_runtime.errors import RetryableError
from elastic_training.concurrency.daemons import in_daemon

T = TypeVar("T")
THREADS = 8
"""Requests of one API server's process that are worked at; the others wait."""
REQUEST_TIMEOUT = 10.0
"""Seconds that a request takes at most, its wait included."""


class Busy(RetryableError):
    """The page's threads of this API server are all taken."""


class Limiter:
    """For any event loop.

    Args:
        threads: as many calls at the same time.
        max_wait: seconds of a call, its wait for a thread included.
    """

    def __init__(self, threads: int = THREADS, max_wait: float = REQUEST_TIMEOUT) -> None:
        self._max_wait = max_wait
        self._lock = threading.Lock()
        self._free = threads
        self._turns: deque[Future[None]] = deque()

    async def call(self, function: Callable[..., T], /, *args: object) -> T:
        """Call what blocks.

        Raises:
            Busy: it has not returned in time. What had begun goes on, and keeps its thread until it is over.
        """
        until = asyncio.get_running_loop().time() + self._max_wait
        try:
            async with asyncio.timeout_at(until):
                await self._turn()
                call: asyncio.Future[T] = self._begun(function, args)
                call.add_done_callback(lambda it: it.cancelled() or it.exception())  # Also if nobody waits any more.
                await asyncio.wait([call])
        except TimeoutError:
            raise Busy(f"This API server's threads for trainings were busy for {self._max_wait:g} s") from None
        return call.result()

    def _begun(self, function: Callable[..., T], args: tuple[object, ...]) -> asyncio.Future[T]:
        try:
            return in_daemon(self._called, function, args)
        except BaseException:  # The system has no more threads: nobody else would give the turn back.
            self._done()
            raise

    async def _turn(self) -> None:
        turn: Future[None] = Future()
        with self._lock:
            self._turns.append(turn)
        self._next()
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            if not turn.cancel():  # It came at the same moment.
                self._done()
            raise

    def _called(self, function: Callable[..., T], args: tuple[object, ...]) -> T:
        try:
            return function(*args)
        finally:
            self._done()

    def _done(self) -> None:
        with self._lock:
            self._free += 1
        self._next()

    def _next(self) -> None:
        with self._lock:
            while self._free and self._turns:
                turn = self._turns.popleft()
                if turn.set_running_or_notify_cancel():
                    self._free -= 1
                    turn.set_result(None)
