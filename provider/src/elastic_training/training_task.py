"""How other tasks point at a training: by the ids of its task, from which the run's name follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastic_training.naming import run_name
from elastic_training.settings import whole_number


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """The ids as the user gave them, rendered."""

    task_id: str
    dag_id: str | None = None
    """None: the DAG of the task that asks."""
    run_id: str | None = None
    """None: the DAG run of the task that asks."""
    map_index: int | str = -1

    def run_of(self, context: Any) -> str:
        """Name of the training run. Raises InvalidSettings for a map index that is no number."""
        task_instance = context["ti"]
        return run_name(
            self.dag_id or task_instance.dag_id,
            self.run_id or task_instance.run_id,
            self.task_id,
            whole_number("map_index", self.map_index, least=-1),
        )
