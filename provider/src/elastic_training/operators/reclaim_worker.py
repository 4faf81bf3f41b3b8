"""A drill: take a worker from a running training, as a cloud would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.status import Phase, Status, WorkerState
from elastic_training.airflow.sdk import AirflowException, AirflowFailException, BaseOperator
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import check_cluster, get_cluster
from elastic_training.clusters.types import RunRef, StatusChanged
from elastic_training.concurrency.bridge import run
from elastic_training.lifecycle.training_task import TrainingTask
from elastic_training.operators.checks import check_foreign
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import Duration, IntOrTemplate, parse_bool, seconds_of

_BEAT = 5.0


class ReclaimWorkerOperator(BaseOperator):
    """Sends a reclaim notice to a worker of a running training, and waits until it has left.

    Returns the worker's name.

    Args:
        training_task_id: of the training's task. Templated.
        worker: its name; None: the training worker that came last. Templated.
        grace: how long after the notice the worker is gone; bare numbers are seconds. Templated.
        wait_for_world: wait also until the others train on without it.
        training_dag_id: None: this DAG. Templated.
        training_run_id: None: this DAG run; of another DAG the latest with such a training. Templated.
        map_index: of a mapped training task; -1: not mapped. Templated.
        cluster: as of the training. Templated.
        timeout: longest wait after the deadline of the notice; bare numbers are seconds.
        kwargs: of every operator.

    Raises:
        AirflowFailException: from ``execute``, when no worker trains or none has that name.
        RunNotFound: from ``execute``, when there is no such run; retried.
        AirflowException: from ``execute``, when the training ends before, or the worker stays.
    """

    template_fields: Sequence[str] = (
        "training_task_id",
        "worker",
        "grace",
        "training_dag_id",
        "training_run_id",
        "map_index",
        "cluster",
    )
    ui_color = "#f6e3db"

    def __init__(
        self,
        *,
        training_task_id: str,
        worker: str | None = None,
        grace: Duration = timedelta(seconds=30),
        wait_for_world: bool = True,
        training_dag_id: str | None = None,
        training_run_id: str | None = None,
        map_index: IntOrTemplate = -1,
        cluster: str = "local",
        timeout: timedelta | float = timedelta(minutes=5),
        **kwargs: Any,
    ) -> None:
        check_foreign(type(self).__name__, kwargs)
        super().__init__(**kwargs)
        self.training_task_id = training_task_id
        self.worker = worker
        self.grace = grace
        self.wait_for_world = parse_bool("wait_for_world", wait_for_world)
        self.training_dag_id = training_dag_id
        self.training_run_id = training_run_id
        self.map_index = map_index
        self.cluster = cluster
        self.timeout = timeout
        check_cluster(cluster)
        if not is_template(grace):
            seconds_of("grace", grace)
        seconds_of("timeout", timeout)

    def execute(self, context: Any) -> str:
        """Send, wait, return the name."""
        return run(self._drill(context))

    async def _drill(self, context: Any) -> str:
        try:
            training = TrainingTask.of(
                context,
                self.training_task_id,
                self.training_dag_id,
                self.training_run_id,
                self.map_index,
            )
            cluster = get_cluster(self.cluster)
            grace = seconds_of("grace", self.grace)
            ref = await training.find(cluster)
            status = await cluster.status(ref)
            worker = self.worker or newest_training(status)
            deadline = await cluster.reclaim(ref, worker, timedelta(seconds=grace))
        except InvalidSettings as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("Sent worker %s of run %s a notice for %s", worker, ref.name, deadline)
        await self._wait(cluster, ref, worker, status.generation, grace + seconds_of("timeout", self.timeout))
        return worker

    async def _wait(self, cluster: Cluster, ref: RunRef, worker: str, generation: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), aclosing(cluster.watch(ref, None, _BEAT)) as updates:
                async for update in updates:
                    if not isinstance(update, StatusChanged):
                        continue
                    status = update.status
                    if has_left(status, worker) and (not self.wait_for_world or trains_on(status, generation)):
                        self.log.info("Worker %s has left; %d ranks train", worker, status.world_size)
                        return
                    if status.phase.final:
                        raise AirflowException(
                            f"the training run {ref.name} has {status.phase} ({status.reason}) before its other "
                            f"workers trained on without {worker}"
                        )
        except TimeoutError:
            raise AirflowException(f"worker {worker} of {ref.name} has not left within {seconds:g} s") from None


def newest_training(status: Status) -> str:
    """The training worker that came last. Raises InvalidSettings when none trains."""
    training = [worker for worker in status.workers if worker.state is WorkerState.TRAINING]
    if not training:
        raise InvalidSettings(
            "training_task_id",
            f"no worker of the run {status.run} trains (it is {status.phase}: {status.reason})",
            "Put the drill behind a ScaleWorkersSensor, which waits until they do",
        )
    return min(training, key=lambda worker: worker.seconds).name


def has_left(status: Status, worker: str) -> bool:
    """Whether the worker is gone."""
    return all(found.state.gone for found in status.workers if found.name == worker)


def trains_on(status: Status, generation: int) -> bool:
    """Whether a world newer than ``generation`` trains."""
    return status.phase is Phase.RUNNING and status.world_size > 0 and status.generation > generation
