"""What keeps strangers from taking the place, the time or the memory of agents: seats and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastic_runtime.pace import Pace


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


class Turns:
    """So many tries a second that fail; those that do not fail cost nothing.

    Whoever waits, waits among those of its address, the newest of which is next: a flood of one address does not hold
    up another one, and on one address nobody stands behind a queue of strangers.

    Args:
        rate: tries a second; as many may be had at once.
        now: monotonic seconds.
    """

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self._pace = Pace(rate, rate, now)
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, address: str) -> None:
        """Until it is the turn of whoever calls this."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, []).append(turn)
        self._go_on()
        try:
            await turn
        finally:
            self._forget(address, turn)

    def give_back(self) -> None:
        """Somebody's try has not failed."""
        self._pace.give_back()
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._pace.take():
            address = min(self._waiting, key=lambda each: len(self._waiting[each]))
            turn = self._waiting[address][-1]
            self._forget(address, turn)
            if turn.done():
                self._pace.give_back()
            else:
                turn.set_result(None)
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pace.until_next(), self._again)

    def _again(self) -> None:
        self._timer = None
        self._go_on()

    def _forget(self, address: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(address, [])
        if turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(address, None)
