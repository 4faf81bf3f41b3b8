"""Owners of DAGs. From the metadata database, so not for a task's worker."""

from __future__ import annotations

from collections.abc import Collection

AT_ONCE = 500
"""DAGs of one question."""


def owners_of(dag_ids: Collection[str]) -> dict[str, str]:
    """Return the owners of each DAG that Airflow knows, by commas. Raises whatever the database does."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = sorted(dag_ids)
    found: dict[str, str] = {}
    with create_session() as session:
        for begin in range(0, len(wanted), AT_ONCE):
            asked = select(DagModel.dag_id, DagModel.owners).where(DagModel.dag_id.in_(wanted[begin : begin + AT_ONCE]))
            found |= {row[0]: str(row[1] or "") for row in session.execute(asked)}
    return found
