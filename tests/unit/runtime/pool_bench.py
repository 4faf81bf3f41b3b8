"""What tests of a pool's real connections await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SOON = 10.0


async def until(true: Callable[[], object], what: str) -> None:
    """Await that something is true."""
    try:
        async with asyncio.timeout(SOON):
            while not true():  # noqa: ASYNC110  # nothing says so
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {SOON:.0f} s: {what}") from None
