"""Triggers that wait for a time years away: what a triggerer with N triggers costs by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks.deferred.sides import Name, Side
from benchmarks.deferred.triggerer import TriggerSpec

_TRIGGER = "airflow.providers.standard.triggers.temporal.DateTimeTrigger"


class Idle(Side):
    """Airflow's own ``DateTimeTrigger``. It is never ended."""

    name = Name.IDLE

    async def create(self, count: int) -> Sequence[TriggerSpec]:
        """Nothing but triggers."""
        return [TriggerSpec(_TRIGGER, {"moment": {"__time__": "2100-01-01T00:00:00+00:00"}})] * count

    async def live(self) -> None:
        """Nothing happens."""
        await asyncio.get_running_loop().create_future()

    async def watched(self) -> bool:
        """Not known."""
        return True

    async def end(self, index: int) -> float:
        """Is not asked for."""
        del index
        return time.time()

    async def remove(self) -> None:
        """There is nothing."""
