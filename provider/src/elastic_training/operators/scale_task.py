"""What the sensor and the operator that scale a training have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from elastic_training.clusters.document import SizeRequest, released_names, size_request
from elastic_training.clusters.registry import check_cluster, own_name
from elastic_training.identity.naming import similar
from elastic_training.identity.ownership import Owner
from elastic_training.lifecycle.training_task import TrainingRun, TrainingTask, check_training_run
from elastic_training.scaling.request import ScaleRequest, ScaleState, ScaleWait, Verdict, check_after, scale_after
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import IntOrTemplate, parse_bool
from elastic_training.triggers.world_size import WorldSizeTrigger

_EARLY = frozenset({"one_success", "one_failed", "one_done"})
"""Trigger rules by which a task of several upstream tasks does not wait for all of them."""


def comes_after(dag: Any, task_id: str, other: str) -> bool:
    """Whether a task begins only once another one is over.

    Args:
        dag: of both.
        task_id: of the task.
        other: id of the other one.
    """
    seen: set[str] = set()
    waiting = [task_id]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        task = dag.get_task(each)
        rule, upstream = str(getattr(task.trigger_rule, "value", task.trigger_rule)), task.upstream_task_ids
        if rule == "always" or (rule in _EARLY and len(upstream) > 1):
            continue
        if other in upstream:
            return True
        waiting += upstream
    return False


FIELDS: Sequence[str] = (
    "training_task_id",
    "workers",
    "release",
    "after_step",
    "after_epoch",
    "after_metric",
    "training_dag_id",
    "training_run_id",
    "training_run",
    "map_index",
    "cluster",
    "clip",
)
"""Templated fields of both."""


class IfFinished(StrEnum):
    """What becomes of the task when the training ends before it has the wanted size, or will never begin."""

    FAIL = "fail"
    SKIP = "skip"


class ScalesTraining:
    """Mix-in, before an Airflow base: the requested size. See ``ScaleWorkersSensor`` for the fields."""

    task_id: str
    training_task_id: str
    workers: IntOrTemplate | None
    release: Sequence[str] | None
    after_step: IntOrTemplate | None
    after_epoch: IntOrTemplate | None
    after_metric: Sequence[Any] | None
    training_dag_id: str | None
    training_run_id: str | None
    training_run: str | None
    map_index: IntOrTemplate
    cluster: str
    clip: bool | str
    if_finished: str
    wait = True
    _scale_wait: ScaleWait | None = None

    def _check_what_is_known(self) -> None:
        """Check all values that are not templates, when the DAG is parsed. Raise InvalidSettings."""
        check_cluster(self.cluster)
        check_after(self.after_step, self.after_epoch, self.after_metric)
        check_training_run(self.training_run_id, self.training_run)
        if self.if_finished not in tuple(IfFinished):
            problem = f"{self.if_finished!r} is not one of its values"
            raise InvalidSettings("if_finished", problem, "Write 'fail' or 'skip'")
        if not is_template(self.clip):
            parse_bool("clip", self.clip)
        self._check_size()
        if isinstance(self.release, list | tuple) and not any(map(is_template, self.release)):
            released_names(self.release)

    def _check_size(self) -> None:
        if (self.workers is None) == (self.release is None):
            size_request(self.workers, self.release)  # Which says what is wrong.
        if self.workers is not None and not is_template(self.workers):
            size_request(self.workers)

    def _size_request(self, name: str, by: str) -> SizeRequest:
        """Of this task, after rendering. Raises InvalidSettings."""
        return size_request(self.workers, self.release, clip=parse_bool("clip", self.clip), name=name, by=by)

    def _wait_for_size(self, context: Any, began: datetime, log: Any, *, silent: bool = False) -> ScaleWait:
        """Return the wait of this try for its size. Raise AirflowFailException for values that only rendering shows."""
        if self._scale_wait is None:
            try:
                self._check_own_dag(context)
                request = self._request(context, began)
                self._scale_wait = ScaleWait(own_name(self.cluster), request, log, silent=silent)
            except InvalidSettings as error:
                raise AirflowFailException(str(error)) from error
        return self._scale_wait

    def _request(self, context: Any, began: datetime) -> ScaleRequest:
        me = Owner.of(context["ti"])
        name = f"{me.dag_id}/{me.run_id}/{me.task_id}/{me.map_index}"
        by = f"task {me.dag_id}.{me.task_id} of {me.run_id}"
        request = self._size_request(name, by)
        if not request.relative:  # A new try may ask again, but must not add again.
            request = replace(request, name=f"{name}/{me.try_number}")
        return ScaleRequest(
            training=TrainingTask.of(
                context,
                self.training_task_id,
                self.training_dag_id,
                self.training_run_id,
                self.map_index,
                self.training_run,
            ),
            size_request=request,
            began=began,
            after=scale_after(self.after_step, self.after_epoch, self.after_metric),
            wait=self.wait,
        )

    def resolve_template_files(self) -> None:
        """As Airflow's, which calls it when the DAG file is parsed and all edges are known. Raises InvalidSettings."""
        super().resolve_template_files()  # type: ignore[misc]  # of the base that this is mixed into
        dag = self.dag if self.has_dag() else None  # type: ignore[attr-defined]  # as above
        fields = (self.training_task_id, self.training_dag_id, self.training_run_id, self.training_run)
        if dag is not None and not any(map(is_template, fields)) and dag.has_task(self.training_task_id):
            self._check_order(dag, self.training_dag_id in (None, dag.dag_id))

    def _check_order(self, dag: Any, own_dag: bool) -> None:
        """A training that begins only after this task would be waited for until the timeout. Raises InvalidSettings."""
        this_run = not self.training_run_id and self.training_run in (None, TrainingRun.THIS)
        if own_dag and this_run and comes_after(dag, self.training_task_id, self.task_id):
            problem = f"{self.training_task_id!r} begins only after this task ({self.task_id!r}), which waits for it"
            remedy = f"Take the edge out between the two: {self.task_id} runs beside the training"
            raise InvalidSettings("training_task_id", problem, remedy)

    def _check_own_dag(self, context: Any) -> None:
        """A training of this DAG has to be in it. Raises InvalidSettings."""
        dag = getattr(context.get("task"), "dag", None) or context.get("dag")
        own = self.training_dag_id in (None, context["ti"].dag_id) and not self.training_run_id
        if dag is None or not own or self.training_run == TrainingRun.LATEST:
            return
        if dag.has_task(self.training_task_id):
            self._check_order(dag, own)
            return
        raise InvalidSettings(
            "training_task_id",
            f"{self.training_task_id!r} is not a task of DAG {dag.dag_id!r}",
            similar(self.training_task_id, dag.task_ids),
        )

    def _trigger(self, scale_wait: ScaleWait, began: datetime, timeout: float, interval: float, silent: bool) -> Any:
        deadline = began + timedelta(seconds=timeout)
        return WorldSizeTrigger.of(scale_wait.cluster, scale_wait.request, deadline, interval, silent=silent)

    def _conclude(self, verdict: Verdict) -> dict[str, Any] | None:
        """The result; None when it has to be waited. Raises what Airflow knows, when it never will be."""
        match verdict.scaling:
            case ScaleState.WAITING:
                return None
            case ScaleState.REACHED:
                return verdict.result or {}
            case ScaleState.ENDED if self.if_finished == IfFinished.SKIP:
                raise AirflowSkipException(verdict.reason)
            case ScaleState.INVALID:
                raise AirflowFailException(verdict.reason)
            case ScaleState.TIMEOUT:
                raise AirflowSensorTimeout(f"the size was not there in time: {verdict.reason}")
        raise AirflowException(verdict.reason)


def verdict_of(event: Mapping[str, Any]) -> Verdict:
    """From the trigger's event. Raises RuntimeError for an error that nobody expected, as if it had come here."""
    if event["outcome"] not in tuple(ScaleState):
        raise RuntimeError(event["reason"])
    return Verdict(ScaleState(event["outcome"]), event["reason"], event["result"])
