"""What tasks and triggers are told of other tasks, in the place of Airflow's API server or database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from elastic_training.scaling import airflow_tasks


@dataclass
class FakeAirflow:
    """States by task id, by run id, by DAG id; mapped ones as ``train_2``."""

    dags: dict[str, dict[str, dict[str, str | None]]] = field(default_factory=dict)
    dates: dict[datetime, str] = field(default_factory=dict)
    """Run ids by logical date."""
    trouble: Exception | None = None
    looks: int = 0

    def states(self, dag_id: str, run_id: str | None, date: datetime | None) -> Mapping[str, Mapping[str, str | None]]:
        """Of one DAG run."""
        self.looks += 1
        if self.trouble:
            raise self.trouble
        wanted = run_id if run_id or date is None else self.dates.get(date)
        return {run: tasks for run, tasks in self.dags.get(dag_id, {}).items() if run == wanted}

    def count(self, dag_id: str, task_id: str, states: Sequence[str] | None) -> int:
        """Over all DAG runs."""
        self.looks += 1
        found = [tasks[task_id] for tasks in self.dags.get(dag_id, {}).values() if task_id in tasks]
        return sum(states is None or (state or "null") in states for state in found)

    def runs(self, dag_id: str) -> int:
        """DAG runs."""
        return len(self.dags.get(dag_id, {}))

    def install(self, patch: pytest.MonkeyPatch) -> FakeAirflow:
        """In the place of the real one."""
        patch.setattr(airflow_tasks, "present_airflow", lambda: self)
        return self
