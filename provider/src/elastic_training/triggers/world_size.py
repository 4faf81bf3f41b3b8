"""Waits in the triggerer until a training has the size that a sensor wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings, RunNotFound
from elastic_training.clusters.base import StatusChanged
from elastic_training.clusters.registry import get_cluster
from elastic_training.follow import summary
from elastic_training.scale_request import ScaleRequest, ScaleState, Verdict
from elastic_training.triggers.settling import Settling

INVALID = "invalid"
"""``outcome`` of an event whose size is out of the training's bounds."""
TIMEOUT = "timeout"
"""``outcome`` when the sensor's time is over."""
_BEAT = 5.0
"""Seconds between two looks at the clock while nothing changes."""


class WorldSizeTrigger(BaseTrigger):
    """Asks for the size once, and fires one event: ``outcome`` (a ScaleState, ``invalid`` or ``timeout``), ``reason``.

    Args:
        cluster: as the user names it.
        name: of the run, which need not exist yet.
        workers: wanted.
        request: see :meth:`Cluster.set_size`.
        began: of the sensor's try, RFC 3339.
        deadline: RFC 3339, absolute.
        interval: seconds between two looks for a run that is not there.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        workers: int,
        request: str,
        began: str,
        deadline: str,
        interval: float = _BEAT,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in Airflow
        self.cluster = cluster
        self.wish = ScaleRequest(name, workers, request, datetime.fromisoformat(began))
        self.deadline = datetime.fromisoformat(deadline)
        self.interval = interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Only what differs from the defaults."""
        kwargs: dict[str, Any] = {
            "cluster": self.cluster,
            "name": self.wish.name,
            "workers": self.wish.workers,
            "request": self.wish.request,
            "began": self.wish.began.isoformat(),
            "deadline": self.deadline.isoformat(),
        }
        if self.interval != _BEAT:
            kwargs["interval"] = self.interval
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """One event."""
        settling = Settling()
        outcome = await self._outcome()
        await settling.over()
        yield TriggerEvent(outcome)  # type: ignore[no-untyped-call]  # untyped in Airflow

    async def _outcome(self) -> dict[str, Any]:
        verdict = Verdict(ScaleState.WAITING, "the training has not begun")
        while verdict.scaling is ScaleState.WAITING:
            if utc_now() >= self.deadline:
                return {"outcome": TIMEOUT, "reason": verdict.reason}
            try:
                verdict = await self._look()
                if verdict.scaling is ScaleState.WAITING:
                    verdict = await self._until_changed(verdict)
            except InvalidSettings as error:
                return {"outcome": INVALID, "reason": str(error)}
            except (RunNotFound, ClusterUnavailable) as error:
                verdict = Verdict(ScaleState.WAITING, str(error))
                await asyncio.sleep(self.interval)
        return {"outcome": verdict.scaling.value, "reason": verdict.reason}

    async def _look(self) -> Verdict:
        return await self.wish.pursue(get_cluster(self.cluster), utc_now())

    async def _until_changed(self, verdict: Verdict) -> Verdict:
        """The first verdict that differs, from one watch; the one at hand when the watch or the time ends before."""
        cluster = get_cluster(self.cluster)
        ref = await cluster.find(self.wish.name)
        beat = min(_BEAT, self.interval)
        told = ""
        async with aclosing(cluster.watch(ref, None, beat)) as updates:
            async for update in updates:
                if isinstance(update, StatusChanged) and summary(update.status) != told:
                    told = summary(update.status)
                    verdict = await self._look()
                if verdict.scaling is not ScaleState.WAITING or utc_now() >= self.deadline:
                    return verdict
        # An ended run of an earlier try has nothing to watch; look again for the new one, in a while.
        await asyncio.sleep(self.interval)
        return verdict
