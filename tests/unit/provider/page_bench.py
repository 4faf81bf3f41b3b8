"""The page's routes as Airflow mounts them, with a real auth manager, over a run in a cluster that is a fake."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI

from elastic_training.archive import reading
from elastic_training.archive.outages import Outages
from elastic_training.clusters.fake import FakeCluster
from elastic_training.console import access, asking, page, runs
from elastic_training.console.app import build
from tests.unit.provider.operator_bench import NAME, deferred, operator, trying

PREFIX = "/elastic-training"
API = f"{PREFIX}/api/v1"
CHANGING = {"X-Elastic-Training": "1"}
IDS = {"dag_id": "nightly", "run_id": trying().run_id, "task_id": "train"}
Rendered = dict[tuple[str, str, str, int], dict[str, Any]]
"""Template fields by task instance."""


class Browser:
    """Asks an application, without a network."""

    def __init__(self, app: FastAPI) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self._ask("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self._ask("POST", path, **more)

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://airflow.example") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())


def rendering(monkeypatch: pytest.MonkeyPatch, root: Path, store: str | None = None) -> Rendered:
    """What Airflow's database has of tasks, to begin with of the training; and nothing that others have kept."""
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", str(root))
    fields = {"command": ["python"], "workers": {"max": 4}, "cluster": "local", "checkpoint_uri": store}
    rendered: Rendered = {("nightly", trying().run_id, "train", -1): fields}

    def of_task(*ids: Any) -> list[dict[str, Any]]:
        return [rendered[ids]] if ids in rendered else []

    def of_run(dag_id: str, run_id: str) -> list[tuple[str, int, dict[str, Any]]]:
        return [(ids[2], ids[3], each) for ids, each in rendered.items() if ids[:2] == (dag_id, run_id)]

    def of_tasks(ids: Collection[Any]) -> dict[Any, dict[str, Any]]:
        return {each: rendered[each] for each in ids if each in rendered}

    monkeypatch.setattr(page, "rendered_fields", of_task)
    monkeypatch.setattr(runs, "rendered_of_tasks", of_tasks)
    monkeypatch.setattr(page, "rendered_of_run", of_run)
    monkeypatch.setattr(reading, "rendered_fields", of_task)
    return rendered


def seeing(monkeypatch: pytest.MonkeyPatch, role: str | None = "admin") -> Browser:
    """The browser of somebody who is logged in with that role; None: of nobody."""
    return Browser(api_server(monkeypatch, role))


def api_server(monkeypatch: pytest.MonkeyPatch, role: str | None = "admin") -> FastAPI:
    """The page where Airflow has it, as somebody with that role reaches it; nothing is known to be silent."""
    manager = SimpleAuthManager()
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(asking, "OUTAGES", Outages())
    mounted = build()
    if role is not None:
        user = SimpleAuthManagerUser(username="ann", role=role)

        async def person() -> SimpleAuthManagerUser:  # Asynchronous, as Airflow's own: it takes no thread.
            return user

        mounted.dependency_overrides[get_user] = person
    airflow = FastAPI()
    airflow.mount(PREFIX, mounted)
    return airflow


def without_rights(monkeypatch: pytest.MonkeyPatch, *entities: DagAccessEntity, connections: bool = True) -> None:
    """The person may see all of DAGs but these parts; and Airflow's connections or not."""

    class Manager(SimpleAuthManager):
        def is_authorized_dag(self, *, access_entity: Any = None, **_: Any) -> bool:
            return access_entity not in entities

        def is_authorized_connection(self, **_: Any) -> bool:
            return connections

    manager = Manager()
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)


def only_dag(monkeypatch: pytest.MonkeyPatch, dag_id: str, may: Callable[[str], bool] = lambda _: True) -> None:
    """The person may see that DAG alone, and do to it what ``may`` says of the method."""

    class Manager(SimpleAuthManager):
        def is_authorized_dag(self, *, method: Any, details: Any = None, **_: Any) -> bool:
            return details is not None and details.id == dag_id and may(method)

    manager = Manager()
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)


def with_timeline(fake: FakeCluster, store: str) -> Path:
    """Begin a run, which has this timeline."""
    deferred(operator(checkpoint_uri=store, deferrable=True), trying())
    kept = Path(store.removeprefix("file://"), NAME, "traces/timeline-1.json.gz")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(gzip.compress(b"{}"))
    fake.publish(NAME, timeline=kept.as_uri())
    return kept
