"""When the status is written to the API server, and how surely.

Each writing is a request of up to some hundred kilobytes that goes to every reader. So what people and tasks wait for
(phase, worlds, events) is written at once, but not more than once a second; what only counts on (step, metrics,
seconds, usage) every five seconds at first, and less often the longer the run has trained, down to once a minute; and
nothing while nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from elastic_runtime.errors import ElasticError, OwnershipLost, RunNotFound
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.headline import without_figures
from elastic_runtime.run.status import Status

log = logging.getLogger(__name__)

HEADLINE_INTERVAL = 1.0
"""Seconds between two writings, at least; but a change of the phase is written at once."""
FIGURES_INTERVAL, LONGEST_FIGURES_INTERVAL = 5.0, 60.0
"""Seconds between two writings of mere figures, at least: of a young run, and of one that trains for hours."""
FIGURES_SHARE = 1 / 20
"""Share of the run's training time between two writes: a thousand runs of an hour write seventeen times a second."""
_UNTIL_WRITTEN = RetryPolicy(0.5, 15.0)


def due(written: Status | None, latest: Status, since: float) -> float | None:
    """Seconds until the latest status is to be written; None: there is nothing new in it.

    Args:
        written: what was written last.
        latest: what was published last.
        since: seconds since that writing.
    """
    if written is None or written.phase is not latest.phase:
        return 0.0
    if without_figures(written) != without_figures(latest):
        return max(0.0, HEADLINE_INTERVAL - since)
    if replace(written, updated=latest.updated) != latest:
        return max(0.0, _figures_interval(latest) - since)
    return None


def _figures_interval(status: Status) -> float:
    trained = (status.updated - status.started).total_seconds() if status.started else 0.0
    return min(LONGEST_FIGURES_INTERVAL, max(FIGURES_INTERVAL, trained * FIGURES_SHARE))


class Publisher:
    """Writes what it is offered, in time, and again until it succeeds.

    Args:
        write: raises OwnershipLost, RunNotFound, or what may pass.
        on_end: called when nothing can be written any more: another launcher writes now (OwnershipLost), or the run is
            gone (RunNotFound).
    """

    def __init__(
        self, write: Callable[[Status], Awaitable[None]], on_end: Callable[[OwnershipLost | RunNotFound], None]
    ) -> None:
        self._write, self._on_end = write, on_end
        self._loop = asyncio.get_running_loop()
        self._latest: Status | None = None
        self._written: Status | None = None
        self._written_at = 0.0
        self._end: OwnershipLost | RunNotFound | None = None
        self._offered = asyncio.Event()
        self._writing = asyncio.Lock()

    def offer(self, status: Status) -> None:
        """Set the newest status. :meth:`run` writes it as soon as the rate limit allows. Never blocks."""
        self._latest = status
        self._offered.set()

    async def run(self) -> None:
        """Write statuses until cancelled, or until this launcher can write no more."""
        while self._end is None:
            self._offered.clear()
            if (delay := self._delay()) is None:
                await self._offered.wait()
            elif delay:
                await self._wait(delay)
            else:
                await self._write_latest()

    async def flush(self) -> None:
        """Write the latest, however long it takes, even if it was written before: who can, has the run still.

        Does nothing when the run is gone.

        Raises:
            OwnershipLost: another launcher has the run.
        """
        await self._write_latest()
        if isinstance(self._end, OwnershipLost):
            raise self._end

    def unwritten(self) -> bool:
        """Whether there is something to write."""
        return self._end is None and self._latest is not None and due(self._written, self._latest, 0.0) is not None

    async def _write_latest(self) -> None:
        retry = Retry(_UNTIL_WRITTEN)
        async with self._writing:
            while not await self._attempt(first=not retry.failures):
                await retry.pause()

    def _delay(self) -> float | None:
        if self._latest is None:
            return None
        return due(self._written, self._latest, self._loop.time() - self._written_at)

    async def _wait(self, seconds: float) -> None:
        """A new phase comes before the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self._offered.wait()
        except TimeoutError:
            return

    async def _attempt(self, *, first: bool) -> bool:
        """Whether there is nothing more to do."""
        latest = self._latest
        if self._end is not None or latest is None:
            return True
        try:
            await self._write(latest)
        except (OwnershipLost, RunNotFound) as error:
            self._end = error
            self._on_end(error)
            return True
        except ElasticError as error:
            (log.warning if first else log.debug)("the status is not written yet, training goes on: %s", error)
            return False
        self._written, self._written_at = latest, self._loop.time()
        return True
