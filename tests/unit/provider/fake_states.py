"""Airflow's task and asset state stores, in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any


@dataclass
class FakeStateStore:
    """Of one task, or of one asset."""

    values: dict[str, Any] = field(default_factory=dict)
    trouble: Exception | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """As Airflow's."""
        if self.trouble:
            raise self.trouble
        return self.values.get(key, default)

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """As Airflow's: JSON, and not None; the task's own stay for good."""
        if self.trouble:
            raise self.trouble
        assert value is not None
        self.values[key] = json.loads(json.dumps(value))

    async def aget(self, key: str, default: Any = None) -> Any:
        """As Airflow's."""
        return self.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        """As Airflow's."""
        self.set(key, value)
