"""Waits in the triggerer until a training has the size that a task wants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from elastic_runtime.documents import from_plain, to_plain
from elastic_training.scaling.request import BEAT, ScaleRequest, ScaleWait
from elastic_training.triggers.settling import Settling

ERROR = "error"
"""``outcome`` when a look has failed in a way that nobody expects."""


class WorldSizeTrigger(BaseTrigger):
    """Asks for the size once, and fires one event: ``outcome`` (a ScaleState, or ``error``), ``reason``, ``result``.

    Args:
        cluster: its own name, see :func:`~elastic_training.clusters.registry.own_name`.
        request: JSON of a :class:`~elastic_training.scaling.request.ScaleRequest`.
        deadline: RFC 3339, absolute.
        interval: seconds between two looks for a run that is not there.
        silent: see :class:`~elastic_training.scaling.request.ScaleWait`.
    """

    def __init__(
        self, cluster: str, request: dict[str, Any], deadline: str, interval: float = BEAT, silent: bool = False
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in Airflow
        self.cluster = cluster
        self.request = from_plain(ScaleRequest, request)
        self.deadline = datetime.fromisoformat(deadline)
        self.interval = interval
        self.silent = silent

    @classmethod
    def of(
        cls, cluster: str, request: ScaleRequest, deadline: datetime, interval: float, *, silent: bool
    ) -> WorldSizeTrigger:
        """Return the trigger for a request."""
        return cls(cluster, to_plain(request), deadline.isoformat(), interval, silent)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Only what differs from the defaults."""
        kwargs: dict[str, Any] = {
            "cluster": self.cluster,
            "request": to_plain(self.request),
            "deadline": self.deadline.isoformat(),
        }
        if self.interval != BEAT:
            kwargs["interval"] = self.interval
        if self.silent:
            kwargs["silent"] = True
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Wait for the size, and yield one event."""
        settling = Settling()
        outcome = await self._outcome()
        await settling.over()
        yield TriggerEvent(outcome)  # type: ignore[no-untyped-call]  # untyped in Airflow

    async def _outcome(self) -> dict[str, Any]:
        scale_wait = ScaleWait(self.cluster, self.request, self.log, silent=self.silent)
        try:
            verdict = await scale_wait.wait(self.deadline, self.interval)
        except Exception as error:
            self.log.exception("a look at the training has failed")
            return {"outcome": ERROR, "reason": repr(error)[:1000], "result": None}
        return {"outcome": verdict.scaling.value, "reason": verdict.reason, "result": verdict.result}
