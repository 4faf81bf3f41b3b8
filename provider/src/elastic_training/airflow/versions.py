"""Where the versions of Airflow differ, from 2.11 to 3.4, but for what is asked of other tasks.

Their states: :mod:`.airflow_tasks`; their template fields: :mod:`.airflow_rendered`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk.definitions._internal.mixins import ResolveMixin
else:
    try:
        from airflow.sdk.definitions._internal.mixins import ResolveMixin
    except ImportError:  # Airflow 2
        from airflow.utils.mixins import ResolveMixin

if TYPE_CHECKING:
    from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
    from airflow.triggers.base import BaseEventTrigger
else:
    try:
        from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
    except ImportError:  # Below 3.3, where nobody asks one
        RetryDecision, RetryPolicy = None, object

__all__ = [
    "ResolveMixin",
    "RetryDecision",
    "RetryPolicy",
    "connection_in_loop",
    "event_trigger",
    "extras_in_loop",
    "first_reschedule",
    "folder_of",
    "human_branch",
    "is_in_loop",
    "policies_are_asked",
    "remember",
    "stats",
    "task_state",
    "task_state_store",
    "task_states",
    "times_out_deferred_tasks",
    "triggers_are_told_of_kills",
]


def policies_are_asked() -> bool:
    """Whether Airflow asks a task's ``retry_policy``: 3.3 and later do."""
    return RetryDecision is not None


def task_state_store(context: Mapping[str, Any]) -> Any | None:
    """Return the task's state store, which outlives a try, from Airflow 3.3 on. None: this Airflow has none."""
    return context.get("task_state_store")


def is_in_loop(context: Mapping[str, Any]) -> bool:
    """Whether a task runs as an iteration of a loop, of which Airflow 3.4 and later have some."""
    return context.get("loop") is not None


def remember(store: Any, key: str, value: Any) -> None:
    """Set a key of such a store for as long as there is the task instance: a training may take longer than a month."""
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    store.set(key, value, retention=NEVER_EXPIRE)


def event_trigger() -> type[BaseEventTrigger]:
    """Base of triggers that assets are watched by: 3.0 and later; before, a trigger that nothing begins."""
    from airflow.triggers import base

    found: type[BaseEventTrigger] = vars(base).get("BaseEventTrigger", base.BaseTrigger)
    return found


def human_branch() -> type[Any] | None:
    """HITLBranchOperator, which asks a person for the way: 3.1 and later, with the standard provider."""
    from elastic_training.airflow.sdk import AirflowOptionalProviderFeatureException

    try:
        from airflow.providers.standard.operators.hitl import HITLBranchOperator
    except (ImportError, AirflowOptionalProviderFeatureException):
        return None
    found: type[Any] = HITLBranchOperator
    return found


def folder_of(dag: Any) -> Path:
    """Where its file is, also while that is being loaded and a function elsewhere makes the DAG."""
    try:
        from airflow.sdk.definitions._internal.contextmanager import DagContext
    except ImportError:  # Airflow 2
        from airflow.models.dag import DagContext  # type: ignore[no-redef]
    loading = sys.modules.get(DagContext.current_autoregister_module_name or "")
    return Path(getattr(loading, "__file__", None) or dag.fileloc).parent


def triggers_are_told_of_kills() -> bool:
    """Whether Airflow calls ``BaseTrigger.on_kill``: 3.3 and later do."""
    from airflow.triggers.base import BaseTrigger

    return hasattr(BaseTrigger, "on_kill")


def times_out_deferred_tasks() -> bool:
    """Whether Airflow itself ends a deferred task at its ``execution_timeout``, from the try's begin: 2 does.

    It removes the trigger then, and begins no other method of the task. Airflow 3 counts from each resume.
    """
    try:
        import airflow.sdk.execution_time.task_runner  # noqa: F401  # Airflow 2 has none
    except ImportError:
        return True
    return False


def stats(*, in_triggerer: bool) -> Any:
    """Airflow's own way to StatsD, Datadog or OpenTelemetry, as this process has been given one.

    From Airflow 3.2 on there are two, and each process initialises one of them: a task's worker that of the Task SDK; a
    triggerer the core's, before it starts the process of the triggers (``TriggererJobRunner._execute`` in 3.3.2).
    """
    if not in_triggerer:
        from elastic_training.airflow.sdk import Stats

        return Stats
    try:
        return import_module("airflow.observability.stats").Stats
    except ModuleNotFoundError:  # before 3.2
        return import_module("airflow.stats").Stats


async def connection_in_loop(conn_id: str) -> Any:
    """An Airflow connection, from the event loop of a triggerer; raises as ``BaseHook.get_connection`` does.

    Before 3.3.2 Airflow's own asynchronous way masks secrets by a call that blocks, and fails while another goes on.
    """
    from asgiref.sync import sync_to_async

    from elastic_training.airflow.sdk import BaseHook, Connection

    if hasattr(Connection, "aextra_dejson"):
        return await BaseHook.aget_connection(conn_id)
    return await sync_to_async(BaseHook.get_connection)(conn_id)


async def extras_in_loop(connection: Any) -> dict[str, Any]:
    """Extras of such a connection, likewise: to read them masks them."""
    from asgiref.sync import sync_to_async

    if hasattr(connection, "aextra_dejson"):
        found: dict[str, Any] = await connection.aextra_dejson()
    else:
        found = await sync_to_async(lambda: connection.extra_dejson)()
    return found


def first_reschedule(context: Mapping[str, Any]) -> datetime | None:
    """Begin of the first look of a sensor that Airflow has rescheduled; None: it has not.

    Airflow 3's task instance says so. In Airflow 2 it is in the database, from the first try on, or the first one after
    a clear, as its own sensors read it.
    """
    task_instance = context["ti"]
    if (ask := getattr(task_instance, "get_first_reschedule_date", None)) is not None:
        said: datetime | str | None = ask(context)
        return datetime.fromisoformat(said) if isinstance(said, str) else said
    retries = getattr(context.get("task"), "retries", None) or 0
    return _first_reschedule_in_database(task_instance, (task_instance.max_tries or 0) - retries + 1)


def _first_reschedule_in_database(task_instance: Any, first_try: int) -> datetime | None:
    from airflow.models.taskreschedule import TaskReschedule
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    earliest = select(func.min(TaskReschedule.start_date)).where(
        TaskReschedule.dag_id == task_instance.dag_id,
        TaskReschedule.task_id == task_instance.task_id,
        TaskReschedule.run_id == task_instance.run_id,
        TaskReschedule.map_index == task_instance.map_index,
        TaskReschedule.try_number >= first_try,
    )
    with create_session() as session:
        found: datetime | None = session.scalar(earliest)
    return found


async def task_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """State of a task instance, asked from within a triggerer; None: it has none, as after a clear.

    Raises:
        LookupError: there is no such task instance.
        Exception: whatever Airflow raises when it cannot tell.
    """
    states = await task_states(dag_id, task_id, [run_id], map_index)
    if (run_id, map_index) not in states:
        raise LookupError(f"Airflow knows no task instance {dag_id} {run_id} {task_id} {map_index}")
    return states[run_id, map_index]


async def task_states(
    dag_id: str, task_id: str, run_ids: Sequence[str], map_index: int | None
) -> dict[tuple[str, int], str | None]:
    """Return states of a task's instances, by run and map index, with one request from within a triggerer.

    As KubernetesPodTrigger asks: Airflow 3 through the triggerer's supervisor, whose channel belongs to the event loop,
    so that the call has to be asgiref's; Airflow 2 in the database.

    Args:
        dag_id: of the task.
        task_id: of the task.
        run_ids: of its DAG's runs.
        map_index: of the instances. None: all of them.

    Returns:
        The instances that exist. The state of a cleared one is None.

    Raises:
        Exception: whatever Airflow raises when it cannot tell.
    """
    from asgiref.sync import sync_to_async

    try:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    except ImportError:
        return await sync_to_async(_states_in_database)(dag_id, task_id, run_ids, map_index)
    answer: dict[str, dict[str, Any]] = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=dag_id, task_ids=[task_id], run_ids=list(run_ids), map_index=map_index
    )
    found: dict[tuple[str, int], str | None] = {}
    for run_id, states in answer.items():
        for name, state in states.items():
            # The server calls a mapped instance by its task and its index.
            index = name.removeprefix(f"{task_id}_")
            if name == task_id:
                found.setdefault((run_id, -1 if map_index is None else map_index), _word(state))
            elif index != name and index.isdecimal():
                found[run_id, int(index)] = _word(state)
    return found


def _states_in_database(
    dag_id: str, task_id: str, run_ids: Sequence[str], map_index: int | None
) -> dict[tuple[str, int], str | None]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(TaskInstance.run_id, TaskInstance.map_index, TaskInstance.state).where(
        TaskInstance.dag_id == dag_id, TaskInstance.task_id == task_id, TaskInstance.run_id.in_(run_ids)
    )
    if map_index is not None:
        wanted = wanted.where(TaskInstance.map_index == map_index)
    with create_session() as session:
        return {(run_id, index): _word(state) for run_id, index, state in session.execute(wanted)}


def _word(state: Any) -> str | None:
    """Airflow's states are words, or enumerations of them."""
    return None if state is None else str(getattr(state, "value", state))
