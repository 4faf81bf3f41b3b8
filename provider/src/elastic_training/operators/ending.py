"""How a training operator ends its run: asks it to end, keeps what there is of it, and clears up."""

from __future__ import annotations

from typing import Any

from elastic_runtime.errors import OwnershipLost, RetryableError, RunNotFound
from elastic_runtime.run.status import Phase, Status
from elastic_training.archive import Keeper
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import cluster_called, location
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.lifecycle.retention import sweep
from elastic_training.lifecycle.task_memory import TaskMemory, name_of_run
from elastic_training.operators.training_arguments import OnFinish

END = 10.0
"""Seconds that a task which is being ended waits for its run, to keep its final status; Airflow grants it 60."""
_STORE = 20.0
"""Seconds for the store then."""


class EndsRuns:
    """Mix-in for operators that train."""

    log: Any
    cluster: Any
    on_finish: str
    checkpoint_uri: Any
    checkpoint_conn_id: Any
    price_book: Any
    _claimed: tuple[Cluster, RunRef, str] | None
    _place: str | None = None
    """Own name of the cluster, once it is known."""
    _killed: bool

    def keeper(self, cluster: Cluster, place: str) -> Keeper:
        """Return the keeper of this task's run."""
        checkpoints, conn_id = self.checkpoint_uri, self.checkpoint_conn_id
        # Where a run was claimed here, what the cluster's connection says has been taken over; and Airflow cannot be
        # asked from within the handler of a signal.
        if not checkpoints and self._place is None and (said := location(self.cluster)) is not None:
            checkpoints, conn_id = said.checkpoint_uri, conn_id or said.checkpoint_conn_id
        return Keeper(cluster, place, self.log, checkpoints, conn_id, self.price_book)

    def clear_up(self, cluster: Cluster, ref: RunRef, owner: str, status: Status) -> None:
        """Note that the result was taken, or delete what is not to stay, also of runs before."""
        succeeded = status.phase is Phase.SUCCEEDED
        try:
            if self.on_finish == OnFinish.DELETE or (self.on_finish == OnFinish.DELETE_IF_SUCCEEDED and succeeded):
                run(cluster.delete(ref, owner))
            else:
                run(cluster.collect(ref, owner))
            if of_task := read_owner(owner):
                run(sweep(cluster, of_task.deployment, self.log))
        except (OwnershipLost, RetryableError) as error:
            # The result is here: a training of hours is not failed for what can be swept up later.
            self.log.warning("The run %s is over and was not cleared up: %s", ref.name, error)

    def cancel(self, cluster: Cluster, place: str, ref: RunRef, reason: str, owner: str) -> str | None:
        """Ask the run to end, and keep what there is of it once it has. Returns the URI of the report, if any."""
        try:
            run(cluster.cancel(ref, reason, owner))
        except (OwnershipLost, RetryableError) as error:
            self.log.warning("The run was not cancelled: %s", error)
            return None
        return run(self.keeper(cluster, place).keep_at_end(ref, END, _STORE))

    def cancel_of_try(self, context: Any, place: str, task_owner: Owner, reason: str) -> None:
        """Ask the run of this try to end, if it still owns one."""
        task_instance = context["ti"]
        cluster = cluster_called(place)
        remembered = TaskMemory(context, self.log).run()
        try:
            ref = run(cluster.find(run(name_of_run(cluster, place, task_owner.task, remembered, self.log))))
            text = run(cluster.owner(ref))
        except RunNotFound:
            return
        owner = read_owner(text)
        if owner is not None and owner.is_try_of(task_instance):
            self.cancel(cluster, place, ref, reason, text)

    def on_kill(self) -> None:
        """Not deferred: Airflow ends this process (marked, cleared, timed out, or its worker is being evicted)."""
        self._killed = True
        if self._claimed is not None and self._place is not None:
            cluster, ref, owner = self._claimed
            self.cancel(cluster, self._place, ref, "the task was ended", owner)
