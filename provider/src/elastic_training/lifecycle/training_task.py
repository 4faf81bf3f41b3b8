"""How other tasks point at a training: by the ids of its task, from which the run's name follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.types import RunRef, RunSummary
from elastic_training.identity.deployment import deployment
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import read_owner
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import whole_number


class TrainingRun(StrEnum):
    """Which DAG run the training is of, where no id says so."""

    THIS = "this"
    """The one of the task that asks. The default for a training of the same DAG."""
    LATEST = "latest"
    """The one whose training was begun last and goes on, or else will begin. The default for another DAG's.

    Once a task has asked a training for something, it is that one, also when others begin."""
    SAME_LOGICAL_DATE = "same_logical_date"
    """The one with the logical date of the task that asks."""


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """A training task, in one DAG run, or in one that is to be found."""

    dag_id: str
    task_id: str
    run_id: str | None = None
    """None: to be found by the date below, or else the latest."""
    map_index: int = -1
    logical_date: datetime | None = None
    deployment: str = ""
    """Deployment of Airflow. Empty: not known."""

    @classmethod
    def of(
        cls,
        context: Any,
        task_id: str,
        dag_id: str | None = None,
        run_id: str | None = None,
        map_index: int | str = -1,
        which: str | None = None,
    ) -> TrainingTask:
        """From the ids as the user gave them, rendered, and the task that asks.

        Raises:
            InvalidSettings: a map index that is not a number, no logical date to go by, or a deployment that is not a
                name.
        """
        task_instance = context["ti"]
        index = whole_number("map_index", map_index, least=-1)
        own = dag_id in (None, task_instance.dag_id)
        where = dag_id or task_instance.dag_id
        check_training_run(run_id, which)
        choice = TrainingRun(which) if which else TrainingRun.THIS if own else TrainingRun.LATEST
        if run_id or choice is TrainingRun.THIS:
            return cls(where, task_id, run_id or task_instance.run_id, index, None, deployment())
        if choice is TrainingRun.LATEST:
            return cls(where, task_id, None, index, None, deployment())
        if (date := context.get("logical_date")) is None:
            problem = f"this DAG run ({task_instance.run_id}) has no logical date"
            raise InvalidSettings("training_run", problem, "Write 'latest', or give a training_run_id")
        return cls(where, task_id, None, index, date, deployment())

    def __str__(self) -> str:
        which = f"run {self.run_id!r}" if self.run_id else "its latest run"
        if self.logical_date and not self.run_id:
            which = f"the run of logical date {self.logical_date.isoformat()}"
        index = f" with map index {self.map_index}" if self.map_index >= 0 else ""
        return f"task {self.task_id!r}{index} of DAG {self.dag_id!r} in {which}"

    async def find(self, cluster: Cluster) -> RunRef:
        """Its training run. Raises RunNotFound, also while the DAG run of that date is not known."""
        if self.run_id:
            return await cluster.find(self._identity(self.run_id).name)
        if self.logical_date:
            raise RunNotFound(f"there is no {self} yet")
        return (await self.runs(cluster))[0].ref

    async def runs(self, cluster: Cluster) -> list[RunSummary]:
        """Its training runs in all DAG runs: those that go on before the others, and the newest first.

        Raises:
            RunNotFound: there is none.
        """
        found = [each for each in await cluster.list() if self._owns(each.owner)]  # The newest first.
        if not found:
            raise RunNotFound(f"there is no training run of {self} yet")
        return sorted(found, key=lambda each: each.headline.phase.final)

    @property
    def is_latest(self) -> bool:
        """Whether each :meth:`find` may have another run."""
        return not self.run_id and self.logical_date is None

    def in_run_of(self, found: RunSummary) -> TrainingTask:
        """The same in the DAG run of one of its :meth:`runs`; as it is, if :meth:`find` would not find that one so."""
        owner = read_owner(found.owner)
        if owner is None or self._identity(owner.run_id).name != found.ref.name:
            return self
        return replace(self, run_id=owner.run_id)

    def _identity(self, run_id: str) -> TaskIdentity:
        return TaskIdentity(self.dag_id, run_id, self.task_id, self.map_index, self.deployment)

    def _owns(self, text: str) -> bool:
        owner = read_owner(text)
        return owner is not None and owner.task == self._identity(owner.run_id)


def check_training_run(run_id: object, which: object) -> None:
    """Check the known values. Raise InvalidSettings."""
    if which is None or is_template(which):
        return
    if which not in tuple(TrainingRun):
        remedy = "Write 'this', 'latest' or 'same_logical_date'"
        raise InvalidSettings("training_run", f"{which!r} is not one of its values", remedy)
    if run_id:
        raise InvalidSettings("training_run", "there is a training_run_id, too", "Write one of the two")
