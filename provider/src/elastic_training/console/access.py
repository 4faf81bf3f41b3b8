"""Who may do what on the page: as Airflow has it for the task instance and its DAG run. In the API server only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails, PoolDetails
from fastapi import HTTPException, Request

from elastic_training.airflow.sdk import conf

HEADER = "X-Elastic-Training"
"""A form or an image of another site cannot send it, and a script of one only if Airflow's CORS settings allow it."""
LONGEST = 4096
"""Bytes of a body."""


def may_look(user: Any, dag_id: str) -> bool:
    """Whether Airflow would show the DAG's task instances."""
    return _allowed(user, "GET", dag_id, DagAccessEntity.TASK_INSTANCE)


def may_change(user: Any, dag_id: str) -> bool:
    """Whether Airflow would let the DAG's runs be edited."""
    return may_look(user, dag_id) and _allowed(user, "PUT", dag_id, DagAccessEntity.RUN)


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of a user who may read a DAG's task instances."""

    edit: bool = False
    """Right to edit the DAG's runs."""
    logs: bool = False
    """Right to read the task's log: texts of ranks."""
    results: bool = False
    """Right to read the task's XComs: metrics, files, cost."""
    outages: bool = False
    """Right to know why a place or a store does not answer: with that to the task's log, which has it, or to Airflow's
    connections."""


def rights(user: Any, dag_id: str) -> Rights:
    """Return the user's rights for the DAG, from Airflow."""
    logs = _allowed(user, "GET", dag_id, DagAccessEntity.TASK_LOGS)
    return Rights(
        edit=may_change(user, dag_id),
        logs=logs,
        results=_allowed(user, "GET", dag_id, DagAccessEntity.XCOM),
        outages=logs or Person(user).may_see_connections(),
    )


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks for the list of all runs: see :class:`~elastic_training.console.runs.Viewer`."""

    user: Any

    def seen(self, dag_ids: Collection[str]) -> set[str]:
        """Those whose task instances may be looked at."""
        return {each for each in set(dag_ids) if may_look(self.user, each)}

    def may_see_results(self, dag_id: str) -> bool:
        """Whether Airflow would show the DAG's XComs."""
        return _allowed(self.user, "GET", dag_id, DagAccessEntity.XCOM)

    def may_resize_pool(self, name: str) -> bool:
        """Whether Airflow would let a pool of its own be changed that is called so."""
        details = PoolDetails(name=name)
        return bool(get_auth_manager().is_authorized_pool(method="PUT", details=details, user=self.user))

    def may_see_connections(self) -> bool:
        """Whether Airflow would show its connections, so also why one leads nowhere."""
        return bool(get_auth_manager().is_authorized_connection(method="GET", user=self.user))


def require(allowed: bool) -> None:
    """Raise HTTPException (403) unless allowed."""
    if not allowed:
        raise HTTPException(403, "You may not do that")


def of_this_site(request: Request) -> None:
    """For what changes a run. Raises HTTPException where the page, or a program with a token, cannot have sent it."""
    if request.headers.get(HEADER) != "1":
        raise HTTPException(403, f"The header {HEADER}: 1 is missing")
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:  # Browsers set it, and no script can; behind a proxy it is right where names differ.
        foreign = site != "same-origin"
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    if foreign:
        raise HTTPException(403, "The request comes from another site")
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "The body is not JSON")
    length = request.headers.get("Content-Length", "")
    # With both, some servers (h11) go by the chunks, of which nobody says how long they are.
    if "Transfer-Encoding" in request.headers or not length.isdecimal() or len(length) > 10:
        raise HTTPException(411, "The request does not say how long its body is")
    if int(length) > LONGEST:
        raise HTTPException(413, f"The body is longer than {LONGEST} bytes")


def _allowed(user: Any, method: Any, dag_id: str, entity: DagAccessEntity) -> bool:
    details = DagDetails(id=dag_id, **_team(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))


def _team(dag_id: str) -> dict[str, str]:
    """Of the DAG, in an Airflow that has teams (3.2 and later)."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return {}
    from airflow.models.dag import DagModel

    name = DagModel.get_team_name(dag_id)
    return {} if name is None else {"team_name": name}
