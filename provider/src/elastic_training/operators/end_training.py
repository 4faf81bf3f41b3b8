"""End a training, or take away what is left of it: above all as teardowns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind, InvalidSettings, RunNotFound
from elastic_runtime.printable import printable
from elastic_runtime.run.status import Phase
from elastic_training.airflow.sdk import AirflowException, AirflowFailException, BaseOperator
from elastic_training.archive import Keeper
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import check_cluster, cluster_called, location, own_name
from elastic_training.clusters.types import RunRef, StatusChanged
from elastic_training.concurrency.bridge import run
from elastic_training.identity.ownership import read_owner
from elastic_training.lifecycle.training_task import TrainingTask
from elastic_training.operators.checks import check_foreign
from elastic_training.scaling.airflow_tasks import TaskView, TrainingOutlook, view_of
from elastic_training.settings.values import IntOrTemplate, seconds_of

_BEAT = 5.0
_RETRIED = "up_for_retry"
_SILENCE = 30.0
"""Seconds without an answer of Airflow's after which its tasks are not waited for."""


class CancelTrainingOperator(BaseOperator):
    """End a training, and wait until nothing of it computes. Its documents, log and checkpoints stay.

    A training task that waits for the run fails without another try. If there is no run, or if it is over, the task
    succeeds, so it can be repeated. If its task will be retried all the same, as after a run that failed by itself, it
    waits for the next run and ends that one. Returns the run's name, or None without one.

    Args:
        training_task_id: Id of the training's task. Templated.
        training_dag_id: Id of its DAG. None: this DAG. Templated.
        training_run_id: Id of its DAG run. None: this DAG run, or another DAG's latest with such a training. Templated.
        map_index: Index of a mapped training task. -1: not mapped. Templated.
        cluster: The training's. Templated.
        timeout: Longest wait for the end, also of the next run. Bare numbers are seconds.
        checkpoint_uri: The training's, where the report is kept of a run that no task waits for. None: that of the
            cluster's connection, or of the training's task if it is in this DAG. The run's own document is not read: a
            user who can write it would choose where this task writes. Templated.
        checkpoint_conn_id: The training's. Templated.
        kwargs: Parameters of every operator.

    Raises:
        InvalidSettings: at parse, for what is known then.
        AirflowFailException: from ``execute``, for invalid values after rendering.
        AirflowException: from ``execute``, if the run does not end in time, or its task does not begin the next one.
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
    _missing = ""
    """What has not happened yet, for the error when the time is over."""

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
        self._missing = f"the training run of {training} has not ended"
        try:
            async with asyncio.timeout(self.timeout):
                ref = await self._end_runs(cluster, training)
                # Of a training that nobody waits for, nobody else has kept anything.
                await Keeper(cluster, place, self.log, *checkpoints).keep(ref)
                await self._clear(cluster, ref)
        except RunNotFound as gone:
            self.log.info("Nothing to do: %s", gone)
        except TimeoutError:
            raise AirflowException(f"{self._missing} within {self.timeout:g} s") from None
        return ref.name if ref else None

    async def _end_runs(self, cluster: Cluster, training: TrainingTask) -> RunRef:
        """End the run, and each that its task begins in a retry all the same. Return the last one.

        Raises:
            RunNotFound: there is none.
        """
        if training.is_latest:
            training = training.in_run_of((await training.runs(cluster))[0])
        watch = _TaskWatch(training, self.log)
        found: RunRef | None = None
        while True:
            try:
                found = await training.find(cluster)
                asked = await self._cancel(cluster, found)
                status = await cluster.status(found)
                if status.phase is Phase.SUCCEEDED or training.is_latest:
                    return found
                # A task that waits for a run that we have cancelled is not retried; one that is to be retried saw none.
                # One whose own time was over, or that was cleared, has cancelled its run, too, and begins another.
                cancelled = asked and status.failure is FailureKind.CANCELLED
                if cancelled and (await watch.look()).state != _RETRIED:
                    return found
                why = f"the training run {found.name} has {status.phase} ({status.reason})"
            except RunNotFound as gone:
                unfinished = await watch.unfinished()
                if found is None or not unfinished:
                    if unfinished:
                        self.log.warning("%s: when it begins, its training is not ended by this task", unfinished)
                    raise
                why = str(gone)
            else:
                if not (unfinished := await watch.unfinished()):
                    return found
            self._miss(f"{why}, and {unfinished}: its next run has not begun and ended")
            await asyncio.sleep(_BEAT)

    async def _cancel(self, cluster: Cluster, ref: RunRef) -> bool:
        """Return whether it was asked to end: one that is over is left as it is, as its result may have to be taken."""
        asked = False
        while not (await cluster.status(ref)).phase.final:
            self._missing = f"the training run {ref.name} has not ended"
            await cluster.cancel(ref, f"task {self.task_id} of DAG {self.dag_id} ends it", None)
            asked = True
            self.log.info("The training run %s was asked to end", ref.name)
            async with aclosing(cluster.watch(ref, None, _BEAT)) as updates:
                async for update in updates:
                    if isinstance(update, StatusChanged) and update.status.phase.final:
                        return asked
        return asked

    def _miss(self, words: str) -> None:
        """What is waited for, as an error would say it."""
        if words != self._missing:
            self._missing = words
            self.log.info("%s yet", printable(words))

    async def _clear(self, cluster: Cluster, ref: RunRef) -> None:
        """What is done with a run that has ended."""


class DeleteTrainingOperator(CancelTrainingOperator):
    """End a training as :class:`CancelTrainingOperator` does, and delete its documents and log. Checkpoints stay.

    It has the same parameters, result and errors. If a task waits for the run, it has taken the end first; if it does
    not do so in time, nothing is deleted.
    """

    async def _clear(self, cluster: Cluster, ref: RunRef) -> None:
        await self._until_taken(cluster, ref)
        await cluster.delete(ref, await cluster.owner(ref))
        self.log.info("The training run %s was deleted", ref.name)

    async def _until_taken(self, cluster: Cluster, ref: RunRef) -> None:
        """Without its documents, a task that waits for the run would train again."""
        if (owner := read_owner(await cluster.owner(ref))) is None:
            return
        ids = (owner.dag_id, owner.task_id, owner.run_id, owner.map_index)
        watch = _TaskWatch(TrainingTask(*ids, deployment=owner.deployment), self.log)
        while not await cluster.collected(ref):
            if not (unfinished := await watch.unfinished()):
                return
            self._miss(f"{unfinished}, and has not taken the end of the training run {ref.name}, which is not deleted")
            await asyncio.sleep(_BEAT)


class _TaskWatch:
    """Asks Airflow, again and again, whether a training task may still do something."""

    def __init__(self, task: TrainingTask, log: Any) -> None:
        self._task, self._log, self._began = task, log, utc_now()
        self._silent_since: float | None = None

    async def look(self) -> TaskView:
        """What Airflow says now."""
        return await view_of(self._task, self._began, utc_now())

    async def unfinished(self) -> str:
        """What Airflow says of a task that has not finished, for people. Empty: it has, or Airflow says nothing."""
        view, now = await self.look(), asyncio.get_running_loop().time()
        if view.outlook is not TrainingOutlook.UNKNOWN:
            self._silent_since = None
            return view.words if view.outlook is TrainingOutlook.TRAINS else ""
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now < self._silent_since + _SILENCE:
            return view.words
        self._log.warning("%s; going on without it", view.words)
        return ""
