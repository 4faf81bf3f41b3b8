"""Puts N deferred task instances into Airflow's database, each with its trigger; a program of its own.

Runs in an environment that names the database, since Airflow reads its settings when it is imported. It does what the
task process and the scheduler would have done by the time of the deferral: one DAG run, N mapped task instances in the
state *deferred*, N triggers that no triggerer has been given yet. What was there of an earlier round goes.

Standard input: JSON list of ``{"classpath": …, "kwargs": {…}}``, one a task instance. Times in ``kwargs`` are given as
``{"__time__": RFC 3339}``.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from datetime import UTC, datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import delete

from benchmarks.deferred.triggerer import DAG_ID, RUN_ID, TASK_ID


def main() -> None:
    """Read what to put in, and put it in."""
    described = json.load(sys.stdin)
    with create_session() as session:
        session.execute(delete(TaskInstance))
        session.execute(delete(DagRun))
        session.execute(delete(Trigger))
        serialized = SerializedDagModel.get(DAG_ID, session=session)
        assert serialized is not None, f"no DAG {DAG_ID} in the database"
        dag = serialized.dag
        run = dag.create_dagrun(
            run_id=RUN_ID,
            run_after=datetime.now(UTC),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            session=session,
        )
        session.execute(delete(TaskInstance))  # The one that is not mapped.
        for index, each in enumerate(described):
            instance = TaskInstance(
                dag.get_task(TASK_ID),
                serialized.dag_version_id,
                run_id=run.run_id,
                state=TaskInstanceState.DEFERRED,
                map_index=index,
            )
            instance.try_number = 1
            instance.start_date = datetime.now(UTC)
            instance.next_method = "execute_complete"
            instance.next_kwargs = {}
            instance.trigger = _row(each["classpath"], each["kwargs"])
            session.add(instance)


def _row(classpath: str, kwargs: dict[str, Any]) -> Trigger:
    """Made from a real trigger, which also checks the arguments."""
    kind = pkgutil.resolve_name(classpath)
    return Trigger.from_object(kind(**{name: _value(value) for name, value in kwargs.items()}))


def _value(value: object) -> object:
    if isinstance(value, dict) and "__time__" in value:
        return datetime.fromisoformat(value["__time__"])
    return value


if __name__ == "__main__":
    main()
