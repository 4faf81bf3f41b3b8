"""An event loop that ends when its connections have ended, as no triggerer's has to."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GOODBYE = 5.0
"""Seconds for the goodbyes of TLS; a connection that is open then is a leak, and found as one."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``. aiohttp ends the connection of a request that was given up in several steps, unawaited."""

    async def to_the_end() -> T:
        try:
            return await work
        finally:
            await _disconnected()

    return asyncio.run(to_the_end())


async def _disconnected() -> None:
    selector: selectors.BaseSelector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE):
            while len(selector.get_map()) > 1:  # noqa: ASYNC110 - of which there is no event; one is the loop's own
                await asyncio.sleep(0.01)
