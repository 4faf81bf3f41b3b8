"""A record of a run, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from elastic_runtime.launcher.agents import AgentConnection
from elastic_runtime.launcher.worker_pool import Slot, Worker
from elastic_runtime.protocol.rank_names import RankName, WorkerName
from elastic_runtime.protocol.wire import Hello
from elastic_runtime.run.status import (
    EventKind,
    Status,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@dataclass
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def tick(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


def worker(name: str = "worker-0", slots: int = 1) -> Worker:
    connection = AgentConnection(Hello(name, "node", 7, slots, "lo"), writer=None)  # type: ignore[arg-type]  # nothing is sent
    return Worker(connection, [Slot(RankName(WorkerName(name), index)) for index in range(slots)], NOON)


def kinds(status: Status) -> list[EventKind]:
    return [event.kind for event in status.events]
