"""Finds the newest run of a task: in its place, or else in what is kept of its tries."""

from __future__ import annotations

from dataclasses import replace

from elastic_runtime.errors import RunNotFound
from elastic_runtime.printable import printable
from elastic_training.archive import read_newest
from elastic_training.archive.where import Address
from elastic_training.clusters.cluster import Cluster
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.lifecycle.clearing import EarlierRun
from elastic_training.listeners.audience import Log
from elastic_training.redaction.values import masked


async def earlier_run(
    cluster: Cluster, name: str, task: TaskIdentity, kept: Address | None, log: Log, before: int | None = None
) -> EarlierRun | None:
    """The newest run of a task; None: none is known.

    Args:
        cluster: where the task trains.
        name: of its run.
        task: whose run it is.
        kept: where its tries are kept; None: nowhere. A store that does not answer costs a warning.
        log: of the task that asks.
        before: a try: of those that are kept only earlier ones count. Later ones are of a DAG run of the same id that
            was deleted. None: all.

    Raises:
        ClusterUnavailable: the place does not answer.
    """
    try:
        ref = await cluster.find(name)
        owner = read_owner(await cluster.owner(ref))
        if owner is not None and replace(owner.task, deployment=task.deployment) == task:
            status, spec = await cluster.status(ref), await cluster.spec(ref)
            folder = spec.checkpoint.uri.rpartition("/")[2] if spec.checkpoint else None
            return EarlierRun.of(owner, status, name, folder)
    except RunNotFound:
        pass
    if kept is None:
        return None
    try:
        found = await in_daemon(read_newest, kept, task, before)
    except Exception as error:  # noqa: BLE001  # a store's, a network's, Airflow's: none of them stops a training
        log.warning("What was kept of earlier tries cannot be read: %s", printable(masked(str(error))))
        return None
    if found is None:
        return None
    owner = Owner(*(task.dag_id, task.run_id, task.task_id, task.map_index), found.try_number, "")
    return EarlierRun.of(owner, found.status, name, found.folder)


async def folder_of_task(cluster: Cluster, task: TaskIdentity, kept: Address | None, log: Log) -> str:
    """The folder of another task's checkpoints, under the prefix. Raises as :func:`earlier_run`."""
    found = await earlier_run(cluster, task.name, task, kept, log)
    return found.folder if found is not None and found.folder else task.name
