"""Scale a running training, and wait until it has followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    conf,
)

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_training.bridge import run
from elastic_training.clusters.registry import check_cluster, get_cluster
from elastic_training.ownership import Owner
from elastic_training.scale_request import ScaleRequest, ScaleState
from elastic_training.settings import IntOrTemplate, parse_bool, whole_number
from elastic_training.templating import is_template
from elastic_training.training_task import TrainingTask
from elastic_training.triggers.world_size import INVALID, TIMEOUT, WorldSizeTrigger


class IfFinished(StrEnum):
    """What the sensor does when the training has ended before it had the wanted size."""

    FAIL = "fail"
    SKIP = "skip"


class ScaleWorkersSensor(BaseSensorOperator):
    """Asks a training for another number of workers, once, and waits until that many train.

    Waits for the training to begin, too, so that it can run beside it from the start; the first world has the size that
    the training itself starts with. When somebody asks for yet another size meanwhile, it fails rather than fight.

    Args:
        training_task_id: of the :class:`~elastic_training.operators.elastic_horovod.ElasticHorovodOperator`. Templated.
        workers: wanted, within the training's ``min`` and ``max``. Templated.
        training_dag_id: None: this DAG. Templated.
        training_run_id: None: this DAG run. Templated.
        map_index: of a mapped training task; -1: not mapped. Templated.
        cluster: as of the training. Templated.
        if_finished: see :class:`IfFinished`.
        poke_interval: seconds (default 5). Deferred, changes are seen at once, and this is only how often a training
            that has not begun is looked for.
        deferrable: wait in the triggerer. Default: Airflow's ``[operators] default_deferrable``.
        kwargs: of every sensor; ``timeout`` counts from the first poke, also over deferring.
    """

    template_fields: Sequence[str] = (
        "training_task_id",
        "workers",
        "training_dag_id",
        "training_run_id",
        "map_index",
        "cluster",
    )
    ui_color = "#e5f2e1"

    def __init__(
        self,
        *,
        training_task_id: str,
        workers: IntOrTemplate,
        training_dag_id: str | None = None,
        training_run_id: str | None = None,
        map_index: IntOrTemplate = -1,
        cluster: str = "local",
        if_finished: str = IfFinished.FAIL.value,
        poke_interval: timedelta | float = 5,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.training_task_id = training_task_id
        self.workers = workers
        self.training_dag_id = training_dag_id
        self.training_run_id = training_run_id
        self.map_index = map_index
        self.cluster = cluster
        self.if_finished = if_finished
        self.deferrable = parse_bool("deferrable", deferrable)
        check_cluster(cluster)
        if not is_template(workers):
            whole_number("workers", workers, least=1)
        if if_finished not in tuple(IfFinished):
            raise InvalidSettings("if_finished", f"{if_finished!r} is not one of its values", "Write 'fail' or 'skip'")

    def execute(self, context: Any) -> None:
        """Poke once; then wait as asked."""
        if not self.deferrable:
            super().execute(context)
            return
        began = utc_now()
        wish = self._wish(context, began)
        if self._pursue(wish):
            return
        self.defer(
            trigger=WorldSizeTrigger(
                cluster=self.cluster,
                name=wish.name,
                workers=wish.workers,
                request=wish.request,
                began=began.isoformat(),
                deadline=(began + timedelta(seconds=self.timeout)).isoformat(),
                interval=self.poke_interval,
            ),
            method_name="execute_complete",
        )

    def poke(self, context: Any) -> bool:
        """Whether the world has the size."""
        return self._pursue(self._wish(context, self._began(context)))

    def execute_complete(self, _: Any, event: Mapping[str, Any]) -> None:
        """Judge the trigger's event."""
        outcome, reason = event["outcome"], event["reason"]
        if outcome == TIMEOUT:
            raise AirflowSensorTimeout(f"no {self.workers} workers within {self.timeout:g} s: {reason}")
        if outcome == INVALID:
            raise AirflowFailException(reason)
        self._conclude(ScaleState(outcome), reason)

    def _wish(self, context: Any, began: datetime) -> ScaleRequest:
        training = TrainingTask(self.training_task_id, self.training_dag_id, self.training_run_id, self.map_index)
        me = Owner.of(context["ti"])
        try:
            return ScaleRequest(
                name=run(training.run_of(get_cluster(self.cluster), context)),
                workers=whole_number("workers", self.workers, least=1),
                # The same for all pokes of a try, wherever they run; a new try may ask again.
                request=f"{me.dag_id}/{me.run_id}/{me.task_id}/{me.map_index}/{me.try_number}",
                began=began,
            )
        except InvalidSettings as error:
            raise AirflowFailException(str(error)) from error

    def _pursue(self, wish: ScaleRequest) -> bool:
        try:
            verdict = run(wish.pursue(get_cluster(self.cluster), utc_now()))
        except RunNotFound:
            self.log.info("The training run %s has not begun", wish.name)
            return False
        except InvalidSettings as error:
            raise AirflowFailException(str(error)) from error
        return self._conclude(verdict.scaling, verdict.reason)

    def _conclude(self, scaling: ScaleState, reason: str) -> bool:
        """Whether it is reached. Raises when it never will be."""
        match scaling:
            case ScaleState.ENDED if self.if_finished == IfFinished.SKIP:
                raise AirflowSkipException(reason)
            case ScaleState.ENDED | ScaleState.OVERRULED:
                raise AirflowException(reason)
        self.log.info("%s: %s", scaling, reason)
        return scaling is ScaleState.REACHED

    def _began(self, context: Any) -> datetime:
        """Of this try, before any reschedule."""
        task_instance = context["ti"]
        if self.reschedule and (first := task_instance.get_first_reschedule_date(context)):
            return _datetime(first)
        return _datetime(task_instance.start_date)


def _datetime(value: datetime | str | None) -> datetime:
    if value is None:
        return utc_now()
    return datetime.fromisoformat(value) if isinstance(value, str) else value
