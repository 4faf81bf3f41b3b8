"""Limits for strangers, so that agents keep places, time and memory: seats and turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastic_runtime.net.seats import Seats
from elastic_runtime.pace import Pace


class Lobby(Seats[asyncio.Task[None]]):
    """Seats of tasks, which are cancelled when they have to go."""

    def enter(self, address: str, task: asyncio.Task[None]) -> bool:
        """Seat it until it leaves or ends. Whether another one had to go."""
        gone = self.take(address, task)
        if gone is not None:
            gone.cancel()
        task.add_done_callback(lambda _: self.leave(address, task))
        return gone is not None


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
