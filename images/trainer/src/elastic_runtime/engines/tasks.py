"""Tasks of a session: one runs each rank, others what the engine needs besides."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine
from typing import Any

ANSWER_TIME = 5.0
"""Seconds that agents have to tell of the end of ranks that were killed."""


class SessionTasks:
    """Those of one session, in its event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the work as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, running: Collection[str], grace: float) -> None:
        """Wait until no rank is left, and end what is under way still.

        Args:
            running: ranks that run, kept up to date by the session.
            grace: seconds that they have, before :data:`ANSWER_TIME`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace + ANSWER_TIME):
                while running:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
