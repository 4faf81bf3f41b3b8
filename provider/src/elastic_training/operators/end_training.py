"""End a training, or take away what is left of it: above all as teardowns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_training.airflow.sdk import AirflowException, AirflowFailException, BaseOperator
from elastic_training.archive import Keeper
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import check_cluster, cluster_called, location, own_name
from elastic_training.clusters.types import RunRef, StatusChanged
from elastic_training.concurrency.bridge import run
from elastic_training.lifecycle.training_task import TrainingTask
from elastic_training.operators.checks import check_foreign
from elastic_training.settings.values import IntOrTemplate, seconds_of

_BEAT = 5.0


class CancelTrainingOperator(BaseOperator):
    """End a training, and wait until nothing of it computes. Its documents, log and checkpoints stay.

    A training task that waits for the run fails without another try. If there is no run, or if it is over, the task
    succeeds, so it can be repeated. Returns the run's name, or None without one.

    Args:
        training_task_id: Id of the training's task. Templated.
        training_dag_id: Id of its DAG. None: this DAG. Templated.
        training_run_id: Id of its DAG run. None: this DAG run, or another DAG's latest with such a training. Templated.
        map_index: Index of a mapped training task. -1: not mapped. Templated.
        cluster: The training's. Templated.
        timeout: Longest wait for the end. Bare numbers are seconds.
        checkpoint_uri: The training's, where the report is kept of a run that no task waits for. None: that of the
            cluster's connection, or of the training's task if it is in this DAG. The run's own document is not read: a
            user who can write it would choose where this task writes. Templated.
        checkpoint_conn_id: The training's. Templated.
        kwargs: Parameters of every operator.

    Raises:
        InvalidSettings: at parse, for what is known then.
        AirflowFailException: from ``execute``, for invalid values after rendering.
        AirflowException: from ``execute``, if the run does not end in time.
        ClusterUnavailable: from ``execute``; the task is retried.
    """

    template_fields: Sequence[str] = (
        "training_task_id",
        "training_dag_id",
        "training_run_id",
        "map_index",
        "cluster",
        "checkpoint_uri",
        "checkpoint_conn_id",
    )
    ui_color = "#f6e3db"

    def __init__(
        self,
        *,
        training_task_id: str,
        training_dag_id: str | None = None,
        training_run_id: str | None = None,
        map_index: IntOrTemplate = -1,
        cluster: str = "local",
        timeout: timedelta | float = timedelta(minutes=5),
        checkpoint_uri: str | None = None,
        checkpoint_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_foreign(type(self).__name__, kwargs)
        super().__init__(**kwargs)
        self.training_task_id = training_task_id
        self.training_dag_id = training_dag_id
        self.training_run_id = training_run_id
        self.map_index = map_index
        self.cluster = cluster
        self.timeout = seconds_of("timeout", timeout)
        self.checkpoint_uri, self.checkpoint_conn_id = checkpoint_uri, checkpoint_conn_id
        check_cluster(cluster)

    def execute(self, context: Any) -> str | None:
        """Find the run and end it."""
        try:
            training = TrainingTask.of(
                context, self.training_task_id, self.training_dag_id, self.training_run_id, self.map_index
            )
            place = own_name(self.cluster)
            checkpoints = self._checkpoints(context)
            return run(self._end(cluster_called(place), place, training, checkpoints))
        except InvalidSettings as error:
            raise AirflowFailException(str(error)) from error

    def _checkpoints(self, context: Any) -> tuple[str | None, str | None]:
        """Where the training's are, and the connection for it."""
        if self.checkpoint_uri:
            return self.checkpoint_uri, self.checkpoint_conn_id
        said = location(self.cluster)
        uri, conn_id = (said.checkpoint_uri, said.checkpoint_conn_id) if said else (None, None)
        if (dag := self.get_dag()) is not None and self.training_dag_id in (None, self.dag_id):
            task = dag.task_dict.get(self.training_task_id)
            uri = self.render_template(getattr(task, "checkpoint_uri", None), context) or uri
            conn_id = self.render_template(getattr(task, "checkpoint_conn_id", None), context) or conn_id
        return uri or None, self.checkpoint_conn_id or conn_id

    async def _end(
        self, cluster: Cluster, place: str, training: TrainingTask, checkpoints: tuple[str | None, str | None]
    ) -> str | None:
        ref = None
        try:
            async with asyncio.timeout(self.timeout):
                ref = await training.find(cluster)
                await self._cancel(cluster, ref)
                # Of a training that nobody waits for, nobody else has kept anything.
                await Keeper(cluster, place, self.log, *checkpoints).keep(ref)
                await self._clear(cluster, ref)
        except RunNotFound as gone:
            self.log.info("Nothing to do: %s", gone)
        except TimeoutError:
            name = ref.name if ref else training
            raise AirflowException(f"the training run {name} has not ended within {self.timeout:g} s") from None
        return ref.name if ref else None

    async def _cancel(self, cluster: Cluster, ref: RunRef) -> None:
        # A run that is over is left as it is: its result may still have to be taken.
        while not (await cluster.status(ref)).phase.final:
            await cluster.cancel(ref, f"task {self.task_id} of DAG {self.dag_id} ends it", None)
            self.log.info("The training run %s was asked to end", ref.name)
            async with aclosing(cluster.watch(ref, None, _BEAT)) as updates:
                async for update in updates:
                    if isinstance(update, StatusChanged) and update.status.phase.final:
                        return

    async def _clear(self, cluster: Cluster, ref: RunRef) -> None:
        """What is done with a run that has ended."""


class DeleteTrainingOperator(CancelTrainingOperator):
    """End a training as :class:`CancelTrainingOperator` does, and delete its documents and log. Checkpoints stay.

    It has the same parameters, result and errors.
    """

    async def _clear(self, cluster: Cluster, ref: RunRef) -> None:
        await cluster.delete(ref, await cluster.owner(ref))
        self.log.info("The training run %s was deleted", ref.name)
