"""How much of something there may be in a second, and warnings that keep to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class Pace:
    """Token bucket: so much a second, and some of it at once.

    Args:
        rate: tokens that come in a second.
        burst: tokens that are kept at most, and are there at the start.
        now: monotonic seconds.
    """

    def __init__(self, rate: float, burst: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left, self._counted = burst, now()

    def pay(self, tokens: float) -> float:
        """Take them, even if there are not as many. Returns the seconds until the debt is paid, which may be 0."""
        self._left = self._present() - tokens
        return max(0.0, -self._left / self._rate)

    def take(self) -> bool:
        """Take one, if there is one."""
        self._left = self._present()
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def give_back(self) -> None:
        """One that was taken has not been used."""
        self._left += 1.0

    def until_next(self) -> float:
        """Seconds until there is one."""
        return max(0.0, (1.0 - self._present()) / self._rate)

    def _present(self) -> float:
        now = self._now()
        self._left = min(self._burst, self._left + self._rate * (now - self._counted))
        self._counted = now
        return self._left


class RateLimitedLog:
    """Says a few at once, and then one now and then, with how many were not said.

    For warnings about what a peer, or a disk, can cause a thousand times a second.

    Args:
        log: to say it to.
        burst: warnings that may come at once.
        every: seconds after which there may be one more.
        now: monotonic seconds.
    """

    def __init__(
        self, log: logging.Logger, burst: int = 5, every: float = 30.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._pace, self._unsaid = log, Pace(1 / every, burst, now), 0

    def warning(self, message: str, *arguments: object) -> None:
        """Percent formatting; what comes from outside has been made printable by the caller."""
        if not self._pace.take():
            self._unsaid += 1
            return
        if self._unsaid:
            message, arguments = message + " (and %d like it before)", (*arguments, self._unsaid)
            self._unsaid = 0
        self._log.warning(message, *arguments)
