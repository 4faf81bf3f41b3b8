"""The page's own API inside Airflow's API server. See docs/page.md.

Routes are plain functions, which FastAPI runs in threads: places and stores are asked through the bridge.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import get_user
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    ElasticError,
    InvalidSettings,
    OwnershipLost,
    RunNotFound,
    StoreUnavailable,
)
from elastic_runtime.printable import printable
from elastic_training.console import changes, page, runs
from elastic_training.console.access import may_change, may_look, of_this_site, require, seen_by
from elastic_training.console.late import LateKeeping
from elastic_training.deployment import deployment
from elastic_training.naming import TaskIdentity
from elastic_training.redaction import masked

log = logging.getLogger(__name__)
ASSETS = {"page.js": "text/javascript", "page.css": "text/css"}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'self'"
NOT_BUILT = "The page is not built here: run make frontend in the repository, then restart the API server."
STATUS_OF: dict[type[ElasticError], int] = {
    InvalidSettings: 422,
    RunNotFound: 404,
    Conflict: 409,
    OwnershipLost: 409,
    ClusterUnavailable: 503,
    StoreUnavailable: 503,
}

Id = Annotated[str, Field(min_length=1, max_length=250)]
Index = Annotated[int, Field(ge=-1, le=1_000_000)]
Person = Annotated[Any, Depends(get_user)]


class Ids(BaseModel):
    """Of a task instance, whichever its try."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dag_id: Id
    run_id: Id
    task_id: Id
    map_index: Index = -1

    def task(self) -> TaskIdentity:
        """In this deployment of Airflow. Raises InvalidSettings."""
        return TaskIdentity(self.dag_id, self.run_id, self.task_id, self.map_index, deployment())


class Size(Ids):
    """So many workers."""

    workers: Annotated[int, Field(ge=1, le=1_000_000)]


class Notice(Ids):
    """To one worker."""

    worker: Annotated[str, Field(min_length=1, max_length=300)]
    seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0


def _ids(
    dag_id: Annotated[Id, Query()],
    run_id: Annotated[Id, Query()],
    task_id: Annotated[Id, Query()],
    map_index: Annotated[Index, Query()] = -1,
) -> Ids:
    return Ids(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)


Asked = Annotated[Ids, Depends(_ids)]
Try = Annotated[int | None, Query(ge=1, le=1_000_000)]


def build() -> FastAPI:
    """The application that is mounted under ``/elastic-training``."""
    app = FastAPI(title="Elastic training", docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(_guarded)
    app.exception_handler(ElasticError)(_told)
    _read_routes(app)
    _change_routes(app)
    _static_routes(app)
    return app


def _read_routes(app: FastAPI) -> None:
    run_list, late = runs.RunList(), LateKeeping()

    @app.get("/api/v1/task")
    def task(ids: Asked, user: Person, afterwards: BackgroundTasks, try_number: Try = None) -> JSONResponse:
        require(may_look(user, ids.dag_id))
        seen = page.look(ids.task(), try_number)
        if seen is not None and seen.ended is not None:
            afterwards.add_task(late.keep, [seen.ended])
        return JSONResponse(page.describe(ids.task(), seen, may_edit=may_change(user, ids.dag_id)))

    @app.get("/api/v1/dag-run")
    def dag_run(dag_id: Annotated[Id, Query()], run_id: Annotated[Id, Query()], user: Person) -> JSONResponse:
        require(may_look(user, dag_id))
        return JSONResponse({"tasks": page.tasks_of(dag_id, run_id, deployment())})

    @app.get("/api/v1/runs")
    def all_runs(wanted: Annotated[runs.Wanted, Query()], user: Person, afterwards: BackgroundTasks) -> JSONResponse:
        shown, ended = run_list.shown(wanted, deployment(), lambda dag_ids: seen_by(user, dag_ids))
        afterwards.add_task(late.keep, ended)
        return JSONResponse(shown)

    @app.get("/report")
    def report(ids: Asked, user: Person, try_number: Try = None) -> HTMLResponse:
        require(may_look(user, ids.dag_id))
        html = page.report(ids.task(), try_number)
        if html is None:
            raise HTTPException(404, "There is no run of this try, and nothing was kept of one")
        return HTMLResponse(html, headers={"Content-Security-Policy": REPORT_POLICY})


def _change_routes(app: FastAPI) -> None:
    @app.post("/api/v1/scale")
    def scale(body: Size, user: Person) -> JSONResponse:
        require(may_change(user, body.dag_id))
        changes.scale(body.task(), body.workers)
        return _done(user, f"{body.workers} workers", body)

    @app.post("/api/v1/notice")
    def notice(body: Notice, user: Person) -> JSONResponse:
        require(may_change(user, body.dag_id))
        changes.notice(body.task(), body.worker, body.seconds)
        return _done(user, f"a notice for {body.worker}", body)

    @app.post("/api/v1/end")
    def end(body: Ids, user: Person) -> JSONResponse:
        require(may_change(user, body.dag_id))
        changes.end(body.task(), printable(str(user.get_name()), 100))
        return _done(user, "the end", body)


def _static_routes(app: FastAPI) -> None:
    static = files(__package__) / "static"

    @app.get("/static/{name}")
    def asset(name: str) -> Response:
        if name not in ASSETS:
            raise HTTPException(404, "There is no such file")
        try:
            content = (static / name).read_bytes()
        except FileNotFoundError:
            raise HTTPException(404, NOT_BUILT) from None
        return Response(content, media_type=ASSETS[name], headers={"Cache-Control": "no-cache"})

    @app.get("/")
    @app.get("/task")
    @app.get("/dag-run")
    def html() -> HTMLResponse:
        headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}
        try:
            return HTMLResponse((static / "index.html").read_text(encoding="utf-8"), headers=headers)
        except FileNotFoundError:  # A checkout, of which somebody has cleaned up too much.
            return HTMLResponse(f"<!doctype html><title>Elastic training</title><p>{NOT_BUILT}", 503, headers)


def _done(user: Any, what: str, ids: Ids) -> JSONResponse:
    words = printable(str(user.get_name()), 100), printable(what, 400), printable(repr(ids.task()), 1000)
    log.info("%s has asked for %s on the page of %s", *words)
    return JSONResponse({})


async def _guarded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
    try:  # Before anything reads the body.
        if request.method not in ("GET", "HEAD"):
            of_this_site(request)
        answer = await call(request)
    except HTTPException as error:
        answer = JSONResponse({"message": error.detail}, error.status_code)
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Referrer-Policy"] = "same-origin"
    answer.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    answer.headers.setdefault("Cache-Control", "no-store")
    return answer


async def _told(_request: Request, error: Exception) -> JSONResponse:
    status = next((STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF), 500)
    return JSONResponse({"message": masked(str(error))}, status)
