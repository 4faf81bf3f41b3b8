"""Scale a running training, for those who do not want a sensor that acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_training.airflow.sdk import BaseOperator, conf
from elastic_training.concurrency.bridge import run
from elastic_training.operators.checks import check_foreign
from elastic_training.operators.scale_task import FIELDS, IfFinished, ScalesTraining, verdict_of
from elastic_training.settings.values import IntOrTemplate, parse_bool, seconds_of


class ScaleTrainingOperator(ScalesTraining, BaseOperator):
    """Asks a training for another size, as :class:`~elastic_training.sensors.scale_workers.ScaleWorkersSensor` does.

    Returns what it returns; with ``wait=False`` ``world_size`` and ``seconds`` are None.

    Args:
        training_task_id: and all that is not named here: as of the sensor.
        wait: until the world has the size; False: only until the training has begun and was asked for it.
        timeout: longest wait; bare numbers are seconds.
        poke_interval: seconds between two looks for a training that has not begun.
        deferrable: wait in the triggerer. Default: Airflow's ``[operators] default_deferrable``.
        kwargs: of every operator.

    Raises:
        InvalidSettings: at parse, for what is known then.
        AirflowFailException: from ``execute``, for what will never be: no such training, a size out of bounds.
        AirflowSensorTimeout: from ``execute``, when the time is over.
        AirflowException: from ``execute``, when the training ends before, or somebody asks for another size.
    """

    template_fields: Sequence[str] = tuple(FIELDS)
    ui_color = "#e5f2e1"

    def __init__(
        self,
        *,
        training_task_id: str,
        workers: IntOrTemplate | None = None,
        release: Sequence[str] | None = None,
        clip: bool | str = False,
        after_step: IntOrTemplate | None = None,
        after_epoch: IntOrTemplate | None = None,
        after_metric: Sequence[Any] | None = None,
        training_dag_id: str | None = None,
        training_run_id: str | None = None,
        training_run: str | None = None,
        map_index: IntOrTemplate = -1,
        cluster: str = "local",
        if_finished: str = IfFinished.FAIL.value,
        wait: bool = True,
        timeout: timedelta | float = timedelta(hours=1),
        poke_interval: float = 5,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        check_foreign(type(self).__name__, kwargs)
        super().__init__(**kwargs)
        self.training_task_id = training_task_id
        self.workers = workers
        self.release = release
        self.clip = clip
        self.after_step = after_step
        self.after_epoch = after_epoch
        self.after_metric = after_metric
        self.training_dag_id = training_dag_id
        self.training_run_id = training_run_id
        self.training_run = training_run
        self.map_index = map_index
        self.cluster = cluster
        self.if_finished = if_finished
        self.wait = parse_bool("wait", wait)
        self.timeout = seconds_of("timeout", timeout)
        self.poke_interval = seconds_of("poke_interval", poke_interval)
        self.deferrable = parse_bool("deferrable", deferrable)
        self._check_what_is_known()

    def execute(self, context: Any) -> Any:
        """Request the size, and wait for it: in the worker, or deferred."""
        began = utc_now()
        scale_wait = self._wait_for_size(context, began, self.log)
        if self.deferrable:
            if (found := self._conclude(run(scale_wait.check()))) is not None:
                return found
            trigger = self._trigger(scale_wait, began, self.timeout, self.poke_interval, silent=False)
            self.defer(trigger=trigger, method_name="execute_complete")
        return self._conclude(run(scale_wait.wait(began + timedelta(seconds=self.timeout), self.poke_interval)))

    def execute_complete(self, _: Any, event: Mapping[str, Any]) -> Any:
        """End the task as the trigger's event says. Return what ``execute`` returns, and raise as it does."""
        return self._conclude(verdict_of(event))
