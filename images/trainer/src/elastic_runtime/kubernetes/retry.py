"""Which requests are made again, when, and for how long, before their caller hears of the trouble.

Every request may be: what changes something is conditional, or names what it makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from elastic_runtime.errors import ClusterUnavailable, ElasticError, MissingRight, PermanentError
from elastic_runtime.kubernetes.errors import TooBusy
from elastic_runtime.retry import RetryPolicy

T = TypeVar("T")
FORBIDDEN = RetryPolicy(0.5, 2.0)
"""Before a missing right is believed: an API server that has just started knows no rules yet, nor new accounts."""
FORBIDDEN_ATTEMPTS = 4
AWAY = RetryPolicy(0.1, 1.0)
"""A connection that was broken, a server that is being replaced by another."""
AWAY_ATTEMPTS = 3
RETRY_TIMEOUT = 5.0
"""Seconds for which an absent server is asked again: it may take as long not to answer once."""
RATE_LIMIT_TIMEOUT = 30.0
"""The same for one that names a time to come back."""

UNTIL_BACK = RetryPolicy(0.5, 15.0, jitter=True)
"""For what goes on for as long as its process lives: a server that does not answer."""
UNTIL_ALLOWED = RetryPolicy(5.0, 600.0)
"""The same: a server that refuses. It has been asked several times then, but rules are made late, too."""


def until_mended(error: ElasticError) -> RetryPolicy:
    """For what goes on for as long as its process lives, and has met this error."""
    return UNTIL_ALLOWED if isinstance(error, PermanentError) else UNTIL_BACK


async def persistently(ask: Callable[[], Awaitable[T]]) -> T:
    """Its answer, after as many attempts as its errors deserve. Raises the last one's."""
    loop = asyncio.get_running_loop()
    began, attempts = loop.time(), 0
    while True:
        attempts += 1
        try:
            return await ask()
        except (ClusterUnavailable, MissingRight) as error:
            delay = _delay(error, attempts, loop.time() - began)
            if delay is None:
                raise
        await asyncio.sleep(delay)


def _delay(error: ClusterUnavailable | MissingRight, attempts: int, spent: float) -> float | None:
    if isinstance(error, MissingRight):
        return FORBIDDEN.delay(attempts) if attempts < FORBIDDEN_ATTEMPTS else None
    if isinstance(error, TooBusy):
        return error.seconds if spent + error.seconds <= RATE_LIMIT_TIMEOUT else None
    return AWAY.delay(attempts) if attempts < AWAY_ATTEMPTS and spent < RETRY_TIMEOUT else None
