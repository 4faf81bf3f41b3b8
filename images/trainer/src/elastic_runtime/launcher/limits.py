"""Limits for unverified connections, so that they cannot keep agents out: how many, and failed attempts a second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from elastic_runtime.net.seats import Seats
from elastic_runtime.pace import Pace


class ConnectionLimit(Seats[asyncio.Task[None]]):
    """Limit of concurrent connections, each served by a task. A connection that has to make room is cancelled."""

    def enter(self, address: str, task: asyncio.Task[None]) -> bool:
        """Admit a connection until it leaves or its task ends. Return whether another one was cancelled for it."""
        gone = self.take(address, task)
        if gone is not None:
            gone.cancel()
        task.add_done_callback(lambda _: self.leave(address, task))
        return gone is not None


class FailureLimit:
    """Rate limit of failed attempts. Successful attempts do not count.

    Whoever waits, waits among those of its address, any of which may be next: a flood of one address does not hold up
    another one. On one address nobody stands behind a queue of strangers, nor behind some who come back at once.

    Args:
        rate: failed attempts a second, and the burst.
        now: monotonic seconds.
    """

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self._pace = Pace(rate, rate, now)
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, address: str) -> None:
        """Block until an attempt from this address is allowed."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, []).append(turn)
        self._go_on()
        try:
            await turn
        finally:
            self._forget(address, turn)

    def give_back(self) -> None:
        """Return the attempt to the budget, because it did not fail."""
        self._pace.give_back()
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._pace.take():
            address = min(self._waiting, key=lambda each: len(self._waiting[each]))
            turn = random.choice(self._waiting[address])  # noqa: S311  # a turn is no secret
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
