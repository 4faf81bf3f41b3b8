"""Where the versions of Airflow differ, from 2.11 to 3.3, but for the states of tasks (:mod:`.airflow_tasks`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk.definitions._internal.mixins import ResolveMixin
else:
    try:
        from airflow.sdk.definitions._internal.mixins import ResolveMixin
    except ImportError:  # Airflow 2
        from airflow.utils.mixins import ResolveMixin

__all__ = ["ResolveMixin", "task_state", "triggers_are_told_of_kills"]


def triggers_are_told_of_kills() -> bool:
    """Whether Airflow calls ``BaseTrigger.on_kill``: 3.3 and later do."""
    from airflow.triggers.base import BaseTrigger

    return hasattr(BaseTrigger, "on_kill")


async def task_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """State of a task instance, asked from within a triggerer; None: it has none, as after a clear.

    As KubernetesPodTrigger asks: Airflow 3 through the triggerer's supervisor, whose channel belongs to the event loop,
    so that the call has to be asgiref's; Airflow 2 in the database.

    Raises:
        LookupError: there is no such task instance.
        Exception: whatever Airflow raises when it cannot tell.
    """
    from asgiref.sync import sync_to_async

    try:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    except ImportError:
        return await sync_to_async(_state_in_database)(dag_id, run_id, task_id, map_index)
    answer: dict[str, Any] = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
    )
    states = answer.get(run_id, {})
    # The server calls a mapped instance by its task and its index.
    for name in ([f"{task_id}_{map_index}"] if map_index >= 0 else []) + [task_id]:
        if name in states:
            return _word(states[name])
    raise LookupError(f"Airflow knows no task instance {dag_id} {run_id} {task_id} {map_index}")


def _state_in_database(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(TaskInstance.state).where(
        TaskInstance.dag_id == dag_id,
        TaskInstance.run_id == run_id,
        TaskInstance.task_id == task_id,
        TaskInstance.map_index == map_index,
    )
    with create_session() as session:
        found = session.execute(wanted).first()
    if found is None:
        raise LookupError(f"Airflow knows no task instance {dag_id} {run_id} {task_id} {map_index}")
    return _word(found[0])


def _word(state: Any) -> str | None:
    """Airflow's states are words, or enumerations of them."""
    return None if state is None else str(getattr(state, "value", state))
