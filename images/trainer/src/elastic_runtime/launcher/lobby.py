"""What keeps strangers from taking the place, the time or the memory of agents: seats and a pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pace:
    """So much a second: of what has come, whoever brought it pays seconds, and waits once it has spent too many.

    Args:
        burst: seconds that may be spent ahead.
        now: monotonic seconds.
    """

    def __init__(self, burst: float, now: Callable[[], float]) -> None:
        self._burst, self._now = burst, now
        self._paid_until = 0.0

    def pay(self, seconds: float) -> float:
        """Returns the seconds to wait now, which may be 0."""
        now = self._now()
        self._paid_until = max(self._paid_until, now - self._burst) + seconds
        return max(0.0, self._paid_until - now)


class Lobby:
    """Where connections sit until they have said who they are: so many, and whoever comes always gets a seat.

    The one that has sat longest goes for it, of the address that has the most: one address cannot keep another out,
    and on one address a flood must fill all seats in the milliseconds that an agent needs.

    Args:
        seats: how many.
    """

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._sitting: dict[str, dict[asyncio.Task[None], None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sitting.values()))

    def enter(self, address: str, task: asyncio.Task[None]) -> bool:
        """Seat it until it leaves or ends. Whether another one had to go, which is cancelled."""
        full = len(self) >= self._seats
        if full:
            most = max(self._sitting.values(), key=len)
            oldest = next(iter(most))
            del most[oldest]
            oldest.cancel()
        self._sitting.setdefault(address, {})[task] = None
        task.add_done_callback(lambda _: self.leave(address, task))
        return full

    def leave(self, address: str, task: asyncio.Task[None]) -> None:
        """It has said who it is, or has gone. Idempotent."""
        if (sitting := self._sitting.get(address)) is not None:
            sitting.pop(task, None)
            if not sitting:
                del self._sitting[address]
