"""What Airflow says of a training's task: whether it is there, and whether it will still train.

Asked of Airflow's API server since 3.0, as its own sensors for other DAGs do, and of the metadata database in 2.x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from elastic_training.concurrency.bridge import ask_airflow
from elastic_training.identity.naming import similar
from elastic_training.lifecycle.training_task import TrainingTask

FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States after which a task instance does nothing more unless somebody clears it."""
UNFINISHED = (
    *("null", "scheduled", "queued", "running", "restarting", "deferred"),
    *("up_for_retry", "up_for_reschedule", "awaiting_input"),
)
"""All others; ``null`` stands for none."""
GRACE = timedelta(minutes=2)
"""For so long from its begin a task that looks for a DAG's latest run waits for one to be made."""


class TrainingOutlook(StrEnum):
    """Whether a training task may still have a run."""

    TRAINS = "trains"
    """It may have a run, now or later."""
    OVER = "over"
    """It has finished, or will never begin."""
    NONE = "none"
    """There is no such task."""
    UNKNOWN = "unknown"
    """Airflow does not say."""


@dataclass(frozen=True, slots=True)
class TaskView:
    """State of a training task, as Airflow reported it."""

    outlook: TrainingOutlook
    words: str
    """For people."""
    task: TrainingTask
    """With its DAG run, if that was to be found by its date."""
    state: str | None = None
    """Airflow's word, if it is about one task instance that has a state."""


class Airflow(Protocol):
    """What is asked, whichever the version. Map indices are appended to task ids, as in ``train_2``."""

    def states(self, dag_id: str, run_id: str | None, date: datetime | None) -> Mapping[str, Mapping[str, str | None]]:
        """Of all task instances of the DAG run with this id or date: state by task id, by run id."""

    def count(self, dag_id: str, task_id: str, states: Sequence[str] | None) -> int:
        """Task instances in any of the DAG's runs."""

    def runs(self, dag_id: str) -> int:
        """Return the number of DAG runs."""


async def view_of(task: TrainingTask, began: datetime, now: datetime) -> TaskView:
    """Return the state of a training task in Airflow.

    Args:
        task: which.
        began: when the task that asks began; see :data:`GRACE`.
        now: the present time.
    """
    try:
        view = await ask_airflow(_read_states, task)
    except Exception as error:  # noqa: BLE001  # whatever is the matter with Airflow's API is not a verdict on it
        return TaskView(TrainingOutlook.UNKNOWN, f"cannot read the state of {task} from Airflow: {error!r}"[:400], task)
    passing = view.task.run_id is None and view.outlook is not TrainingOutlook.TRAINS and now < began + GRACE
    return replace(view, outlook=TrainingOutlook.TRAINS) if passing else view


def _read_states(task: TrainingTask) -> TaskView:
    airflow = present_airflow()
    if task.run_id or task.logical_date:
        return judge_run(task, airflow.states(task.dag_id, task.run_id, task.logical_date), airflow)
    return judge_dag(task, airflow)


def judge_run(task: TrainingTask, runs: Mapping[str, Mapping[str, str | None]], airflow: Airflow) -> TaskView:
    """What the states of one DAG run's tasks mean."""
    if not runs:
        known = airflow.runs(task.dag_id) > 0
        if task.run_id is None and known:  # Of that date it may still be made.
            return TaskView(TrainingOutlook.TRAINS, f"there is no {task} yet", task)
        what = f"no DAG run {task.run_id!r} of it" if known else "no DAG of that id, or it has never run"
        return TaskView(TrainingOutlook.NONE, f"there is no {task}: there is {what}", task)
    run_id, states = next(iter(runs.items()))
    task = replace(task, run_id=run_id)
    key = f"{task.task_id}_{task.map_index}" if task.map_index >= 0 else task.task_id
    if key not in states and task.task_id in states:  # Mapped, and not expanded yet.
        key = task.task_id
    if key not in states:
        return TaskView(TrainingOutlook.NONE, f"there is no {task}. {similar(key, states)}", task)
    state = states[key]
    words = f"{task} is {state or 'not scheduled yet'}"
    return TaskView(TrainingOutlook.OVER if state in FINISHED else TrainingOutlook.TRAINS, words, task, state)


def judge_dag(task: TrainingTask, airflow: Airflow) -> TaskView:
    """The same where any of the DAG's runs will do."""
    if airflow.count(task.dag_id, task.task_id, UNFINISHED):
        return TaskView(TrainingOutlook.TRAINS, f"{task} has not finished", task)
    if airflow.count(task.dag_id, task.task_id, None):
        return TaskView(
            TrainingOutlook.OVER, f"no task {task.task_id!r} of DAG {task.dag_id!r} runs, or is about to", task
        )
    what = "none of its runs has had one" if airflow.runs(task.dag_id) else "no DAG of that id has ever run"
    return TaskView(TrainingOutlook.NONE, f"there is no {task}: {what}", task)


def present_airflow() -> Airflow:
    """The Airflow that runs here."""
    try:
        import airflow.sdk.execution_time.task_runner  # noqa: F401  # Airflow 2 has none
    except ImportError:
        return _Database()
    return _Server()


class _Server:
    """The API server, through the supervisor of this process."""

    def states(self, dag_id: str, run_id: str | None, date: datetime | None) -> Mapping[str, Mapping[str, str | None]]:
        runs, dates = [run_id] if run_id else None, [date] if date and not run_id else None
        found: Mapping[str, Mapping[str, str | None]] = _instance().get_task_states(
            dag_id=dag_id, run_ids=runs, logical_dates=dates
        )
        return found

    def count(self, dag_id: str, task_id: str, states: Sequence[str] | None) -> int:
        wanted = list(states) if states else None
        return int(_instance().get_ti_count(dag_id=dag_id, task_ids=[task_id], states=wanted))

    def runs(self, dag_id: str) -> int:
        return int(_instance().get_dr_count(dag_id=dag_id))


def _instance() -> Any:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance


class _Database:
    """The metadata database of Airflow 2."""

    def states(self, dag_id: str, run_id: str | None, date: datetime | None) -> Mapping[str, Mapping[str, str | None]]:
        from airflow.models import DagRun, TaskInstance

        def query(session: Any) -> Any:
            rows = session.query(
                TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state
            ).filter(TaskInstance.dag_id == dag_id)
            if run_id:
                return rows.filter(TaskInstance.run_id == run_id).all()
            dated = (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id)
            return rows.join(DagRun, dated).filter(DagRun.execution_date == date).all()

        found: dict[str, dict[str, str | None]] = {}
        for run, task, index, state in _in_session(query):
            found.setdefault(run, {})[task if index < 0 else f"{task}_{index}"] = state
        return found

    def count(self, dag_id: str, task_id: str, states: Sequence[str] | None) -> int:
        from airflow.models import TaskInstance

        def query(session: Any) -> Any:
            rows = session.query(TaskInstance).filter(TaskInstance.dag_id == dag_id, TaskInstance.task_id == task_id)
            if states:
                rows = rows.filter(TaskInstance.state.is_(None) | TaskInstance.state.in_(states))
            return rows.count()

        return int(_in_session(query))

    def runs(self, dag_id: str) -> int:
        from airflow.models import DagRun

        return int(_in_session(lambda session: session.query(DagRun).filter(DagRun.dag_id == dag_id).count()))


def _in_session(query: Callable[[Any], Any]) -> Any:
    from airflow.utils.session import create_session

    with create_session() as session:
        return query(session)
