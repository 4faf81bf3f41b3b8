"""Warnings about what a peer, or a disk, can cause a thousand times a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class Seldom:
    """Says a few at once, and then one now and then, with how many were not said.

    Args:
        log: to say it to.
        burst: warnings that may come at once.
        every: seconds after which there may be one more.
        now: monotonic seconds.
    """

    def __init__(
        self, log: logging.Logger, burst: int = 5, every: float = 30.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._burst, self._every, self._now = log, burst, every, now
        self._free, self._since = float(burst), now()
        self._unsaid = 0

    def warning(self, message: str, *arguments: object) -> None:
        """Percent formatting; what comes from outside has been made printable by the caller."""
        now = self._now()
        self._free = min(float(self._burst), self._free + (now - self._since) / self._every)
        self._since = now
        if self._free < 1.0:
            self._unsaid += 1
            return
        self._free -= 1.0
        if self._unsaid:
            message, arguments = message + " (and %d like it before)", (*arguments, self._unsaid)
            self._unsaid = 0
        self._log.warning(message, *arguments)
