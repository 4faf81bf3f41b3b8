from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass
class TaskInstanceOfAirflow2:
    """What operators read of Airflow 2's."""

    task_id: str
    dag_id: str = "nightly"
    run_id: str = "manual__2026-11-21T08:00:00+00:00"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 1
    start_date: datetime = field(default_factory=lambda: datetime.now(UTC))
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        """Remember it."""
        self.pushed[key] = value


@dataclass
class FakeTaskInstance(TaskInstanceOfAirflow2):
    """And of Airflow 3's."""

    first_reschedule: datetime | None = None

    def get_first_reschedule_date(self, _: Any) -> datetime | None:
        """As told."""
        return self.first_reschedule
