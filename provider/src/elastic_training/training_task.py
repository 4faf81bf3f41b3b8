"""How other tasks point at a training: by the ids of its task, from which the run's name follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from elastic_runtime.errors import RunNotFound
from elastic_training.clusters.cluster import Cluster
from elastic_training.deployment import deployment
from elastic_training.naming import TaskIdentity
from elastic_training.ownership import read_owner
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

    def identity(self, context: Any) -> TaskIdentity:
        """Raises InvalidSettings for a map index that is no number, and a deployment that is no name."""
        task_instance = context["ti"]
        return TaskIdentity(
            self.dag_id or task_instance.dag_id,
            self.run_id or task_instance.run_id,
            self.task_id,
            whole_number("map_index", self.map_index, least=-1),
            deployment(),
        )

    async def run_of(self, cluster: Cluster, context: Any) -> str:
        """Name of the training run: see :func:`present_name`. Raises InvalidSettings, as :meth:`identity`."""
        return await present_name(cluster, self.identity(context))


async def present_name(cluster: Cluster, task: TaskIdentity) -> str:
    """Under which name the task's run is, or will be.

    A run that was created before names told deployments apart keeps its name, as long as there is one of the same task,
    and none of the new name.

    Raises:
        ClusterUnavailable: the place does not answer.
    """
    if task.former_name is None:
        return task.name
    try:
        return (await cluster.find(task.name)).name
    except RunNotFound:
        pass
    try:
        owner = read_owner(await cluster.owner(await cluster.find(task.former_name)))
    except RunNotFound:
        return task.name
    mine = (task, replace(task, deployment=""))  # Once it was adopted, its owner tells the deployment.
    return task.former_name if owner and owner.task in mine else task.name
