"""How long to wait before another attempt: twice as long each time, up to a bound."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff; all times in seconds."""

    first: float
    """Before the second attempt."""
    longest: float
    """No delay is longer."""
    jitter: bool = False
    """Draw each delay at random between ``first`` and what it would be, so that many who fail at once do not all come
    back at once (`AWS Architecture Blog, Exponential Backoff And Jitter
    <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>`_)."""

    def delay(self, failures: int) -> float:
        """Before the next attempt.

        Args:
            failures: attempts in a row that have failed, at least 1.
        """
        # A power that large would be no float, long after the delay has stopped growing.
        full = min(self.longest, self.first * 2.0 ** min(failures - 1, 64))
        return random.uniform(min(self.first, full), full) if self.jitter else full  # noqa: S311 - guards nothing


class Retry:
    """Attempts at one thing, and the delays between them."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.failures = 0
        """In a row, so far."""

    def succeeded(self) -> None:
        """The next failure is a first one again."""
        self.failures = 0

    def failed(self) -> float:
        """Count a failure. Returns the seconds to wait before the next attempt."""
        self.failures += 1
        return self._policy.delay(self.failures)

    async def pause(self) -> None:
        """Count a failure, and wait."""
        await asyncio.sleep(self.failed())


class within:  # noqa: N801  # is read as a word: async for _ in within(60.0, 0.5)
    """Again and again for so long, with a pause between; at least once. The caller leaves the loop when it is done.

    No generator: of one that is left early, the end would be left to the garbage collection.
    """

    def __init__(self, seconds: float, pause: float) -> None:
        self._pause = pause
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + seconds
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        if self._begun:
            if self._now() >= self._end:
                raise StopAsyncIteration
            await asyncio.sleep(self._pause)
        self._begun = True
