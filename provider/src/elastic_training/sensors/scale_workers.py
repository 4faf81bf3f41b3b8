"""Scale a running training, and wait until it has followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_training.airflow.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from elastic_training.airflow.versions import first_reschedule
from elastic_training.concurrency.bridge import run
from elastic_training.operators.scale_task import FIELDS, IfFinished, ScalesTraining, verdict_of
from elastic_training.settings.values import IntOrTemplate, parse_bool


class _FinalOutcome(AirflowFailException):
    """What a poke has found to be over, in the one class that Airflow's loop heeds with ``silent_fail``, too."""

    def __init__(self, outcome: Exception) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


class ScaleWorkersSensor(ScalesTraining, BaseSensorOperator):
    """Ask a training once for another size, and wait until it has it.

    It also waits for the training to begin, so it can run beside it from the start. The first world has the size that
    the training itself starts with. If somebody asks for yet another size meanwhile, the sensor fails.

    Returns:
        ``workers``, ``world_size`` (ranks), ``run``, ``asked_at``, and ``seconds`` from the request to the first world
        of that size, by the clocks of Airflow's machine and the launcher's; 0 if it had the size before.

    Args:
        training_task_id: Id of the training's task. Templated.
        workers: Number of workers, 0 to pause the training; or a change of the number that is asked for at the first
            look, ``"+2"`` or ``"-1"``, which retries do not make again; or ``"min"`` or ``"max"`` of the training.
            Templated.
        release: Instead of ``workers``: names of workers to give up without replacement. They get a notice. Templated.
        clip: Take the nearer bound for a size outside of the training's; otherwise such a size fails. Templated.
        after_step: Ask once the training has reached this global step. All of ``after_…`` that are given must hold.
            Templated.
        after_epoch: Ask once the script has reported this ``epoch``. Templated.
        after_metric: Ask once a metric has ever reached a bound: ``("accuracy", ">=", 0.9)``, with ``>=``, ``>``,
            ``<=`` or ``<``. Templated.
        training_dag_id: None: this DAG. Templated.
        training_run_id: Id of the training's DAG run. Templated.
        training_run: Which DAG run, without an id: see :class:`~elastic_training.lifecycle.training_task.TrainingRun`.
            None: this one for a training of this DAG, the latest for another DAG's. Templated.
        map_index: Index of a mapped training task; -1: not mapped. Templated.
        cluster: The training's. Templated.
        if_finished: See :class:`~elastic_training.operators.scale_task.IfFinished`.
        poke_interval: Seconds (default 5). If deferred, changes are seen at once, and this is only how often a training
            that has not begun is looked for.
        deferrable: Wait in the triggerer. Default: Airflow's ``[operators] default_deferrable``.
        kwargs: Parameters of every sensor; ``timeout`` counts from the first poke, also over deferring.
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
        poke_interval: timedelta | float = 5,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
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
        self.deferrable = parse_bool("deferrable", deferrable)
        self._check_what_is_known()

    def execute(self, context: Any) -> Any:
        """Poke once; then wait as asked. The outcome is the same, wherever it is found."""
        try:
            return self._defer_unless_there(context) if self.deferrable else super().execute(context)
        except AirflowSkipException as skipped:
            cause = skipped.__cause__
            if isinstance(cause, _FinalOutcome) and isinstance(cause.outcome, AirflowSkipException):
                raise cause.outcome from None
            raise
        except _FinalOutcome as final:
            raise self._outcome(final.outcome) from None
        except AirflowSensorTimeout as error:
            raise self._outcome(error) from error

    def _defer_unless_there(self, context: Any) -> Any:
        began = utc_now()
        try:
            found = self._poke(context, began)
        except _FinalOutcome:
            raise
        except Exception as error:
            raise self._outcome(error) from error
        if found is None:
            scale_wait = self._wait_for_size(context, began, self.log)
            trigger = self._trigger(scale_wait, began, self.timeout, self.poke_interval, self._silent)
            self.defer(trigger=trigger, method_name="execute_complete")
        return found

    def poke(self, context: Any) -> PokeReturnValue:
        """Whether the world has the size, and then what the task returns."""
        found = self._poke(context, self._began(context))
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def _poke(self, context: Any, began: datetime) -> dict[str, Any] | None:
        scale_wait = self._wait_for_size(context, began, self.log, silent=self._silent)
        verdict = run(scale_wait.check())
        try:
            return self._conclude(verdict)
        except Exception as outcome:
            raise _FinalOutcome(outcome) from outcome

    def execute_complete(self, _: Any, event: Mapping[str, Any]) -> Any:
        """End the task as the trigger's event says. Return what ``execute`` returns, and raise as it does."""
        try:
            return self._conclude(verdict_of(event))
        except Exception as error:
            raise self._outcome(error) from error

    def _outcome(self, error: Exception) -> Exception:
        """What the task ends with: as Airflow's sensors say, a skip for what ``soft_fail`` and ``never_fail`` cover."""
        if isinstance(error, AirflowSkipException):
            return error
        never = getattr(self, "never_fail", False)
        if never or (self.soft_fail and isinstance(error, AirflowException)):
            setting = "never_fail" if never else "soft_fail"
            return AirflowSkipException(f"{error}; skipped, as {setting} is set")
        return error

    @property
    def _silent(self) -> bool:
        return bool(getattr(self, "silent_fail", False))

    def _began(self, context: Any) -> datetime:
        """Of this try; in reschedule mode, of the first look that Airflow knows of."""
        if self.reschedule and (first := first_reschedule(context)):
            return first
        return _datetime(context["ti"].start_date)


def _datetime(value: datetime | str | None) -> datetime:
    if value is None:
        return utc_now()
    return datetime.fromisoformat(value) if isinstance(value, str) else value
