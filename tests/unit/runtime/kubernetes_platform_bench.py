"""A launcher's platform in a namespace that is in memory, open while a test runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from elastic_runtime.run.runobjects import ObjectNames
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import Watched, lay_down, spec, surrounded

RUN = spec()


NAMES = ObjectNames(RUN.name)


MOMENT = 0.1
"""Seconds in which everybody has heard."""


def within(test: Callable[[FakePlace, Watched, asyncio.Event], Awaitable[None]]) -> None:
    """Run the test in open platform."""

    async def main() -> None:
        place, taken = FakePlace(), asyncio.Event()
        await lay_down(place, RUN)
        async with surrounded(place, RUN, taken) as watched:
            await asyncio.sleep(MOMENT)
            watched.changes.clear()
            await test(place, watched, taken)

    run_virtually(main())
