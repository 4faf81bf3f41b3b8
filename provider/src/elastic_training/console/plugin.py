"""The page in Airflow's UI, from Airflow 3.1 on: a tab of task instances and DAG runs, and one for all runs.

Every process of Airflow imports this; what is heavy, the API server loads with the first request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from elastic_training.identity.page_address import PREFIX, has_pages, page_path

_IDS = "dag_id={DAG_ID}&run_id={RUN_ID}"


class _WhenAsked:
    """An ASGI application that is made by the first request."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(_build)
        await self._app(scope, receive, send)


def _build() -> Any:
    from elastic_training.console.app import build

    return build()


def _view(name: str, route: str, destination: str, query: str) -> dict[str, str]:
    return {
        "name": name,
        "href": f"{page_path()}/{query}",
        "destination": destination,
        "url_route": route,
    } | ({"category": "browse"} if destination == "nav" else {})


class ElasticTrainingPlugin(AirflowPlugin):
    """Found by the entry point ``airflow.plugins``."""

    name = "elastic_training"
    fastapi_apps = [{"app": _WhenAsked(), "url_prefix": PREFIX, "name": "Elastic training"}] if has_pages() else []
    external_views = (
        [
            _view(
                "Training",
                "elastic-training-task",
                "task_instance",
                f"task?{_IDS}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
            ),
            _view("Trainings", "elastic-training-dag-run", "dag_run", f"dag-run?{_IDS}"),
            _view("Training runs", "elastic-training-runs", "nav", ""),
        ]
        if has_pages()
        else []
    )
