"""Tells listeners what happens in a run, beside the watch: whatever they do, the watch and the training go on.

One background task, which always looks at the newest status: a listener that is slow hears several changes at once, and
nothing queues up. What a listener raises is logged; one that does not come back in :data:`LISTENER_TIMEOUT` is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from elastic_runtime.printable import printable
from elastic_runtime.run.status import Status
from elastic_training.listeners.changes import Change, ReportedState, changes, read_reported

LISTENER_TIMEOUT = 30.0
"""Seconds that a listener has for what one look has brought; and all of them together for the last."""


class Log(Protocol):
    """Common interface of the standard library's and Airflow's loggers."""

    def info(self, message: str, /, *args: object) -> object:
        """Log a message of level INFO, with percent formatting."""

    def warning(self, message: str, /, *args: object) -> object:
        """Log a message of level WARNING, with percent formatting."""


class Listener(Protocol):
    """Receiver of a run's statuses and of the changes between them."""

    async def handle(self, status: Status | None, news: Sequence[Change]) -> None:
        """The run is like this now, and this has happened; called with each status that differs from the one before.

        Runs in the event loop that watches, with others: what blocks belongs into a thread
        (:func:`~elastic_training.concurrency.daemons.in_daemon`). It may raise anything, and is cancelled after
        :data:`LISTENER_TIMEOUT`.

        Args:
            status: now; None before the first one, when a task has created or adopted the run.
            news: since the last call, often none.
        """


class Audience:
    """The listeners of one watch.

    Args:
        listeners: each is told everything, one after the other.
        log: of the task.
        max_wait: for tests.
    """

    def __init__(self, listeners: Sequence[Listener], log: Log, max_wait: float = LISTENER_TIMEOUT) -> None:
        self._listeners = tuple(listeners)
        self._log = log
        self._max_wait = max_wait
        self._told = ReportedState()
        self._status: Status | None = None
        self._handled: Status | None = None
        self._telling: asyncio.Task[None] | None = None

    def go_on_from(self, told: str) -> None:
        """Continue after an earlier watch, with :attr:`told` of its audience."""
        if self._status is None:
            self._told = read_reported(told)

    @property
    def told(self) -> str | None:
        """Up to where all listeners have heard, to be kept with the run; None: there are none."""
        return self._told.text() if self._listeners and self._status is not None else None

    def handle(self, status: Status) -> None:
        """The run is like this now; returns at once."""
        self._status = status
        if self._listeners and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell_all(), name=f"listeners of {status.run}")

    async def _tell_all(self) -> None:
        while (status := self._status) is not None and status is not self._handled:
            await self.tell(status, changes(self._told, status))
            self._told, self._handled = ReportedState.of(status), status

    async def tell(self, status: Status | None, news: Sequence[Change]) -> None:
        """Each of them, in order; raises nothing that is theirs."""
        for listener in self._listeners:
            name = type(listener).__name__
            try:
                async with asyncio.timeout(self._max_wait):
                    await listener.handle(status, news)
            except TimeoutError:
                self._log.warning("%s has not returned within %g s, and is left", name, self._max_wait)
            except Exception as error:  # noqa: BLE001  # a training is not failed for what its listeners do
                self._log.warning("%s has failed: %s", name, printable(repr(error)))

    async def end(self, *, wait: bool) -> None:
        """Tell what is left, in bounded time; or nothing any more."""
        if (telling := self._telling) is None:
            return
        if wait:
            await asyncio.wait([telling], timeout=self._max_wait)
        telling.cancel()
        await asyncio.wait([telling])
