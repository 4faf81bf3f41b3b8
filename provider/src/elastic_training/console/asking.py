"""How a request of the page asks what may be silent: within one deadline, and not again what was silent lately."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

from elastic_runtime.errors import ClusterUnavailable
from elastic_training.archive.outages import Outages
from elastic_training.concurrency.daemons import in_daemon, within

T = TypeVar("T")
LOOK = 5.0
"""Seconds for place, archive and prices of one look together."""
PLACE = 3.0
"""Seconds of these for the place, so that the archive can still tell what is kept."""
OUTAGES = Outages()
"""Outages that this process has seen."""
THREADS = 32
"""Threads of this process in which the page asks what may be silent, those that nobody waits for any more included."""
_TURN = 0.05
"""Seconds between two attempts to get one of them."""


class Slots:
    """Threads that may exist at the same time. A call holds its slot until it returns, however long nobody waits.

    Args:
        number: of slots.
    """

    def __init__(self, number: int) -> None:
        self._free = threading.BoundedSemaphore(number)

    def within(self, seconds: float, function: Callable[[], T]) -> T:
        """As :func:`elastic_training.concurrency.daemons.within`, the wait for a slot included."""
        until = monotonic() + seconds
        if not self._free.acquire(timeout=max(seconds, 0.0)):
            raise TimeoutError
        call = _Call(function, self._free)
        try:
            return within(max(until - monotonic(), 0.0), call)
        except RuntimeError:
            call.not_begun()
            raise

    async def in_daemon(self, function: Callable[..., T], /, *args: object) -> T:
        """As :func:`elastic_training.concurrency.daemons.in_daemon`, once there is a slot."""
        while not self._free.acquire(blocking=False):  # noqa: ASYNC110  # other loops give slots back, too
            await asyncio.sleep(_TURN)
        call = _Call(partial(function, *args), self._free)
        try:
            return await in_daemon(call)
        except RuntimeError:
            call.not_begun()
            raise


@dataclass(slots=True)
class _Call(Generic[T]):
    """A call that gives its slot back."""

    function: Callable[[], T]
    free: threading.BoundedSemaphore
    begun: bool = False

    def __call__(self) -> T:
        self.begun = True
        try:
            return self.function()
        finally:
            self.free.release()

    def not_begun(self) -> None:
        """Give the slot back if the system had no more threads."""
        if not self.begun:
            self.free.release()


SLOTS = Slots(THREADS)


def of_place(place: str) -> str:
    """Name of a place for :data:`OUTAGES`, which has stores and others, too."""
    return f"the place {place}"


class Deadline:
    """Deadline of one request, from now on.

    Args:
        seconds: for all that it asks.
    """

    def __init__(self, seconds: float = LOOK) -> None:
        self._until = monotonic() + seconds

    @property
    def left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._until - monotonic())

    def ask(self, name: str, function: Callable[[], T]) -> T:
        """Call what blocks; ``name`` says what it asks.

        Raises:
            ClusterUnavailable: it has not returned in time, or was silent lately.
            Exception: its own.
        """
        with OUTAGES.asking(name):
            left = self.left
            try:
                return SLOTS.within(left, function)
            except TimeoutError:
                raise ClusterUnavailable(f"{name} has not answered in {left:.1f} s") from None
