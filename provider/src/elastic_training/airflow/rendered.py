"""Template fields of tasks as Airflow keeps them. From the metadata database, so not for a task's worker.

Up to Airflow 3.3 they are kept by task instance. From 3.4 on they are kept by try, and what an upgraded database has
from before stays in a table of its own. All functions raise whatever the database does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy.sql.expression import Subquery

_IDS = ("dag_id", "run_id", "task_id", "map_index")
_LEGACY = -1
"""Stands for the try where none is known: older than any."""
MOST_OF_RUN = 1000
"""Rows of one DAG run that are read."""


def rendered_fields(dag_id: str, run_id: str, task_id: str, map_index: int) -> list[Mapping[str, Any]]:
    """Template fields of a task instance as its last try has rendered them; and those of the task's newest others.

    Airflow keeps some of each task, by default those of its 30 newest instances; so another instance's may have to
    stand for those of an old one.
    """
    from airflow.utils.session import create_session
    from sqlalchemy import select

    kept = _kept().c
    of_task = select(kept.rendered_fields).where(kept.dag_id == dag_id, kept.task_id == task_id)
    its_own = of_task.where(kept.run_id == run_id, kept.map_index == map_index).order_by(kept.try_number.desc())
    newest = of_task.order_by(kept.run_id.desc(), kept.try_number.desc())
    with create_session() as session:
        found = [session.scalar(its_own.limit(1)), session.scalar(newest.limit(1))]
    return [each for each in found if isinstance(each, Mapping)]


def rendered_of_run(dag_id: str, run_id: str) -> list[tuple[str, int, Mapping[str, Any]]]:
    """Task id, map index and template fields of those tasks of a DAG run of which Airflow has kept them."""
    from airflow.utils.session import create_session
    from sqlalchemy import select

    kept = _kept().c
    wanted = select(kept.task_id, kept.map_index, kept.rendered_fields).where(
        kept.dag_id == dag_id, kept.run_id == run_id
    )
    ordered = wanted.order_by(kept.task_id, kept.map_index, kept.try_number)
    with create_session() as session:
        found = session.execute(ordered.limit(MOST_OF_RUN)).all()
    newest = {(task, index): fields for task, index, fields in found if isinstance(fields, Mapping)}
    return [(task, index, fields) for (task, index), fields in newest.items()]


def rendered_of_tasks(ids: Collection[tuple[str, str, str, int]]) -> dict[tuple[str, str, str, int], Mapping[str, Any]]:
    """Template fields of those task instances of which Airflow has kept them, by dag, run and task id, and map index.

    Args:
        ids: some hundreds at most.
    """
    from airflow.utils.session import create_session
    from sqlalchemy import select, tuple_

    kept = _kept().c
    columns = [kept[name] for name in _IDS]
    wanted = select(*columns, kept.rendered_fields).where(tuple_(*columns).in_(list(ids)))
    with create_session() as session:
        found = session.execute(wanted.order_by(kept.try_number)).all()
    return {(row[0], row[1], row[2], row[3]): row[4] for row in found if isinstance(row[4], Mapping)}


def _kept() -> Subquery[Any]:
    """All that is kept, whichever the version: by the ids, map index and try number of a task instance."""
    from airflow.models import renderedtifields
    from sqlalchemy import select, union_all

    models = vars(renderedtifields)
    rendered = models["RenderedTaskInstanceFields"].__table__.c
    if "task_id" in rendered:
        older: Subquery[Any] = _of_instances(rendered).subquery("kept")
        return older
    tasks = import_module("airflow.models.task_coordinates")
    from airflow.models.taskinstance import TaskInstance

    # Tables, because queries of the models leave out all tries but the newest.
    tries = TaskInstance.__table__
    of_tries = select(
        *(tries.c[name] for name in _IDS[:3]),
        tasks.public_map_index_expression(tries).label("map_index"),
        tries.c.try_number,
        rendered.rendered_fields,
    ).join_from(tries, rendered.task_instance_id.table, rendered.task_instance_id == tries.c.id)
    before = _of_instances(models["LegacyRenderedTaskInstanceFields"].__table__.c)
    return union_all(of_tries, before).subquery("kept")


def _of_instances(table: Any) -> Any:
    from sqlalchemy import literal, select

    return select(*(table[name] for name in _IDS), literal(_LEGACY).label("try_number"), table.rendered_fields)
