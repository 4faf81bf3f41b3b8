"""Asks a person which way to go when a training has failed because its workers stayed away."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.printable import printable
from elastic_training.airflow.sdk import AirflowFailException, BaseOperator
from elastic_training.airflow.versions import human_branch
from elastic_training.operators.elastic_training import FAILURE_KEY
from elastic_training.outcome.steps import UNKNOWN
from elastic_training.scaling.airflow_tasks import present_airflow

if TYPE_CHECKING:
    from airflow.providers.standard.operators.hitl import HITLBranchOperator
else:
    HITLBranchOperator = human_branch() or BaseOperator

WAIT_ON, FEWER, ELSEWHERE, GIVE_UP = "Wait on", "Go on with fewer workers", "Go on elsewhere", "Give up"
"""Options of the question."""
KINDS = (FailureKind.MAX_WAIT_EXCEEDED.value, FailureKind.START_TIMEOUT.value)
"""Failures that are asked about: too few workers came."""


class CapacityDecisionOperator(HITLBranchOperator):
    """Ask a person to wait, continue with fewer workers, continue elsewhere, or give up. Needs Airflow 3.1.

    Put it behind a training; it runs in any case (``trigger_rule="all_done"``). If the training failed because its
    workers did not come, the question with its figures is in Airflow's page of required actions. The chosen branch
    runs, usually an ElasticHorovodOperator that ``continues`` the training. If the training succeeded or was skipped,
    all branches are skipped. If it failed otherwise, this task fails, too.

    Args:
        training_task_id: Id of the training's task, in this DAG and not mapped.
        wait_on: Id of the task, or of the task group, that this choice begins. None: it is not offered.
        fewer: The same.
        elsewhere: The same.
        give_up: The same, but always offered. None: this task then fails, and the DAG run with it.
        kinds: Kinds of failures that are asked about.
        default: Choice if nobody answers within ``response_timeout``.
        kwargs: Parameters of every operator, and Airflow's for people: ``subject``, ``body`` (shown before the
            figures), ``response_timeout``, ``assigned_users``, ``notifiers``, ``params``.

    Raises:
        InvalidSettings: at parse, if there is no choice but to give up, if the default is not offered, or if Airflow is
            too old.
        AirflowFailException: from ``execute``, as described above.
    """

    ui_color = "#f6f0db"

    def __init__(
        self,
        *,
        training_task_id: str,
        wait_on: str | None = None,
        fewer: str | None = None,
        elsewhere: str | None = None,
        give_up: str | None = None,
        kinds: Collection[str] = KINDS,
        default: str | None = None,
        **kwargs: Any,
    ) -> None:
        if human_branch() is None:
            problem = "this Airflow is older than 3.1, or has no apache-airflow-providers-standard"
            raise InvalidSettings("CapacityDecisionOperator", problem, "Branch on the XCom `failure` of the training")
        ways = {WAIT_ON: wait_on, FEWER: fewer, ELSEWHERE: elsewhere, GIVE_UP: give_up}
        offered = [each for each, task in ways.items() if task is not None or each == GIVE_UP]
        if offered == [GIVE_UP]:
            raise InvalidSettings(
                "wait_on", "none of wait_on, fewer and elsewhere is set", 'Write wait_on="TASK", fewer=, or elsewhere='
            )
        if default is not None and default not in offered:
            choices = ", ".join(map(repr, offered))
            raise InvalidSettings("default", f"{default!r} is not offered", f"Write one of {choices}")
        kwargs.setdefault("subject", f"Too few workers for the training {training_task_id!r}")
        kwargs.setdefault("trigger_rule", "all_done")
        super().__init__(
            options=offered,
            options_mapping={each: task for each, task in ways.items() if task is not None},
            defaults=default,
            multiple=False,
            **kwargs,
        )
        self.training_task_id = training_task_id
        self.kinds = tuple(str(each) for each in kinds)

    def execute(self, context: Any) -> Any:
        """Ask, if there is something to ask about."""
        task_instance = context["ti"]
        # First: a training that is skipped for its exit code has left its failure, too.
        state = self._state(task_instance)
        if state in ("success", "skipped"):
            self.log.info("The training %r is %s: there is nothing to decide", self.training_task_id, state)
            return self.do_branch(context, None)
        failure = task_instance.xcom_pull(task_ids=self.training_task_id, key=FAILURE_KEY)
        if not isinstance(failure, Mapping):
            raise AirflowFailException(
                f"the training {self.training_task_id!r} is {state or 'not there'}, with no failure to ask about"
            )
        if failure.get("failure") not in self.kinds:
            raise AirflowFailException(
                f"the training {self.training_task_id!r} has failed, and not for want of workers: "
                f"{printable(failure.get('failure'))}"
            )
        # Set here and not in a template: what a training says of itself is not a template.
        self.body = "\n\n".join(filter(None, (self.body, question(failure))))
        return super().execute(context)

    def _state(self, task_instance: Any) -> str | None:
        runs = present_airflow().states(task_instance.dag_id, task_instance.run_id, None)
        return runs.get(task_instance.run_id, {}).get(self.training_task_id)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Go the way that was chosen."""
        if event.get("chosen_options") == [GIVE_UP] and GIVE_UP not in self.options_mapping:
            raise AirflowFailException(f"the training {self.training_task_id!r} was given up")
        return super().execute_complete(context=context, event=event)


def question(failure: Mapping[str, Any]) -> str:
    """Describe a failed training to a person, as Markdown.

    Args:
        failure: its result document; nothing in it is taken for Markdown.
    """
    facts: list[tuple[str, object]] = [("run", failure.get("run")), ("failed with", failure.get("failure"))]
    facts.append(("reason", failure.get("reason")))
    steps, trained = failure.get("steps"), failure.get("started") is not None
    facts.append(("steps done", (UNKNOWN if trained else "none") if steps is None else steps))
    checkpoint = failure.get("checkpoint")
    if isinstance(checkpoint, Mapping):
        facts.append(("goes on from", f"step {checkpoint.get('step')}, {checkpoint.get('uri')}"))
    else:
        facts.append(("goes on from", "the beginning: there is no durable checkpoint"))
    sizes = failure.get("world_sizes")
    if isinstance(sizes, Sequence) and not isinstance(sizes, str) and sizes:
        facts.append(("ranks that trained", ", ".join(map(str, sizes[-10:]))))
    seconds, workers = failure.get("seconds"), failure.get("worker_seconds_total")
    if isinstance(seconds, int | float) and isinstance(workers, int | float):
        facts.append(("trained for", f"{seconds / 3600:.2f} hours, with {workers / 3600:.2f} hours of workers"))
    return "\n".join(f"* {name}: {_code(value)}" for name, value in facts)


def _code(value: object) -> str:
    """As a span of code, which nothing in it can end."""
    return f"`{printable(value, 600).replace('`', chr(39)) or ' '}`"
