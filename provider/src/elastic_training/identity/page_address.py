"""Where this Airflow serves the page of a run, as everything that leads there writes it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

from airflow.plugins_manager import AirflowPlugin

from elastic_training.airflow.sdk import conf
from elastic_training.identity.naming import TaskIdentity

PREFIX = "/elastic-training"


def has_pages() -> bool:
    """Whether this Airflow shows pages of others: 3.1 and later do."""
    return hasattr(AirflowPlugin, "external_views")


def page_path() -> str:
    """Path of the list of all runs, without a slash at its end: Airflow may be served below a path of its own."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PREFIX


def page_of(task: TaskIdentity) -> str | None:
    """Return the whole address of a task instance's page, for other systems to lead there; None: it is not known."""
    base = conf.get("api", "base_url", fallback="") or ""
    if not has_pages() or not base.lower().startswith(("http://", "https://")):
        return None
    return f"{base.rstrip('/')}{PREFIX}/task?{urlencode(ids_of(task))}"


def ids_of(task: TaskIdentity) -> dict[str, Any]:
    """Return the ids of a task instance, without a try, as the page's addresses and data have them."""
    return {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": task.task_id, "map_index": task.map_index}


def report_query(task: TaskIdentity, try_number: int) -> str:
    """``report?…`` of a try, relative to the page."""
    return f"report?{_query(task, try_number)}"


def timeline_query(task: TaskIdentity, try_number: int) -> str:
    """``timeline?…`` of a try, relative to the page."""
    return f"timeline?{_query(task, try_number)}"


def _query(task: TaskIdentity, try_number: int) -> str:
    return urlencode({**ids_of(task), "try_number": try_number})
