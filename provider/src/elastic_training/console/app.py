"""The page's own API inside Airflow's API server. See docs/page.md.

Whatever blocks runs in threads of the page's own (:mod:`elastic_training.console.limiter`): routes and their
dependencies are asynchronous, because FastAPI runs any other in threads that Airflow's own routes need.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import get_user
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
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
from elastic_runtime.run.pool import check_pool_name
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.console import changes, page, runs, timeline
from elastic_training.console.access import Person, may_change, may_look, of_this_site, require, rights
from elastic_training.console.costs import CostsWanted, plain_costs
from elastic_training.console.late import Ended, LateKeeping
from elastic_training.console.limiter import Busy, Limiter
from elastic_training.cost.totals import as_csv, total_by
from elastic_training.identity.deployment import deployment
from elastic_training.identity.naming import TaskIdentity
from elastic_training.redaction.values import masked
from elastic_training.report import content_policy
from elastic_training.settings.training_pool import POOL, PoolName

log = logging.getLogger(__name__)
ASSETS = {"page.js": "text/javascript", "page.css": "text/css"}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
NOT_BUILT = "The page is not built here: run make frontend in the repository, then restart the API server."
STATUS_OF: dict[type[ElasticError], int] = {
    InvalidSettings: 422,
    RunNotFound: 404,
    Conflict: 409,
    OwnershipLost: 409,
    ClusterUnavailable: 503,
    StoreUnavailable: 503,
    Busy: 503,
}
RETRY_AFTER = 15
"""Seconds, with each 503."""
MOST_ERRORS = 10
"""Errors of one request that are reported."""

Id = Annotated[str, Field(min_length=1, max_length=250)]
Index = Annotated[int, Field(ge=-1, le=1_000_000)]
User = Annotated[Any, Depends(get_user)]
Try = Annotated[int | None, Query(ge=1, le=1_000_000)]


class Ids(BaseModel):
    """Ids of a task instance, without a try."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dag_id: Id
    run_id: Id
    task_id: Id
    map_index: Index = -1

    def task(self) -> TaskIdentity:
        """In this deployment of Airflow. Raises InvalidSettings."""
        return TaskIdentity(self.dag_id, self.run_id, self.task_id, self.map_index, deployment())


class Size(Ids):
    """A request for so many workers."""

    workers: Annotated[int, Field(ge=1, le=1_000_000)]


class PoolResize(BaseModel):
    """A request for a pool with so many workers at most."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pool: Annotated[str, Field(min_length=1, max_length=400)]
    workers: Annotated[int, Field(ge=1, le=1_000_000)]


class Notice(Ids):
    """A request to send a notice to one worker."""

    worker: Annotated[str, Field(min_length=1, max_length=300)]
    seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0


async def _ids(
    dag_id: Annotated[Id, Query()],
    run_id: Annotated[Id, Query()],
    task_id: Annotated[Id, Query()],
    map_index: Annotated[Index, Query()] = -1,
) -> Ids:
    return Ids(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)


Asked = Annotated[Ids, Depends(_ids)]


def build() -> FastAPI:
    """The application that is mounted under ``/elastic-training``."""
    app = FastAPI(title="Elastic training", docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(_guarded)
    app.exception_handler(ElasticError)(_told)
    app.exception_handler(RequestValidationError)(_refused)
    limiter = Limiter()
    _read_routes(app, limiter)
    _change_routes(app, limiter)
    _static_routes(app)
    return app


def _read_routes(app: FastAPI, limiter: Limiter) -> None:
    run_list, late = runs.RunList(), LateKeeping()

    @app.get("/api/v1/task")
    async def task(ids: Asked, user: User, afterwards: BackgroundTasks, try_number: Try = None) -> Response:
        answer, ended = await limiter.call(_task, ids, user, try_number)
        afterwards.add_task(_aside, late.keep, ended)
        return answer

    @app.get("/api/v1/dag-run")
    async def dag_run(dag_id: Annotated[Id, Query()], run_id: Annotated[Id, Query()], user: User) -> Response:
        return await limiter.call(_dag_run, dag_id, run_id, user)

    @app.get("/api/v1/runs")
    async def all_runs(wanted: Annotated[runs.Wanted, Query()], user: User, afterwards: BackgroundTasks) -> Response:
        answer, ended = await limiter.call(_all_runs, run_list, wanted, user)
        afterwards.add_task(_aside, late.keep, ended)
        return answer

    @app.get("/api/v1/costs")
    async def costs(wanted: Annotated[CostsWanted, Query()], user: User) -> Response:
        return await limiter.call(_costs, run_list, wanted, user)

    @app.get("/report")
    async def report(ids: Asked, user: User, try_number: Try = None) -> Response:
        return await limiter.call(_report, ids, user, try_number)

    @app.get("/timeline")
    async def timeline_of(ids: Asked, user: User, try_number: Try = None) -> Response:
        return await limiter.call(_timeline, ids, user, try_number)


def _task(ids: Ids, user: Any, try_number: int | None) -> tuple[Response, list[Ended]]:
    require(may_look(user, ids.dag_id))
    seen = page.look(ids.task(), try_number)
    ended = [seen.ended] if seen is not None and seen.ended is not None else []
    return JSONResponse(page.describe(ids.task(), seen, rights(user, ids.dag_id))), ended


def _dag_run(dag_id: str, run_id: str, user: Any) -> Response:
    require(may_look(user, dag_id))
    return JSONResponse({"tasks": page.tasks_of(dag_id, run_id, deployment())})


def _all_runs(run_list: runs.RunList, wanted: runs.Wanted, user: Any) -> tuple[Response, list[Ended]]:
    shown, ended = run_list.shown(wanted, deployment(), Person(user))
    return JSONResponse(shown), ended


def _costs(run_list: runs.RunList, wanted: CostsWanted, user: Any) -> Response:
    found = run_list.costs(wanted, deployment(), Person(user))
    if not wanted.csv:
        return JSONResponse(plain_costs(found, wanted.by))
    headers = {"Content-Disposition": f'attachment; filename="costs-by-{wanted.by}.csv"'}
    return Response(as_csv(total_by(found, wanted.by), wanted.by), media_type="text/csv", headers=headers)


def _report(ids: Ids, user: Any, try_number: int | None) -> Response:
    require(may_look(user, ids.dag_id))
    html = page.report(ids.task(), try_number, rights(user, ids.dag_id))
    if html is None:
        raise HTTPException(404, "There is no run of this try, and nothing was kept of one")
    # A sandbox without allow-same-origin: its script has no access to Airflow's cookies, storage and API.
    policy = f"{content_policy()}; sandbox allow-scripts; frame-ancestors 'self'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})


def _timeline(ids: Ids, user: Any, try_number: int | None) -> Response:
    """It has names of the script's tensors, and messages of events."""
    require(may_look(user, ids.dag_id))
    granted = rights(user, ids.dag_id)
    require(granted.logs and granted.results)
    task = ids.task()
    headers = {"Content-Disposition": f'attachment; filename="{task.name}-timeline.json.gz"'}
    return Response(timeline.read(task, try_number), media_type="application/gzip", headers=headers)


async def _aside(function: Callable[[list[Ended]], None], ended: list[Ended]) -> None:
    if ended:
        await in_daemon(function, ended)


def _change_routes(app: FastAPI, limiter: Limiter) -> None:
    def done(user: Any, ids: Ids, what: str, change: Callable[[TaskIdentity], str | None]) -> Response:
        require(may_change(user, ids.dag_id))
        command = change(ids.task())
        words = printable(str(user.get_name()), 100), printable(what, 400), printable(repr(ids.task()), 1000)
        log.info("%s has asked for %s on the page of %s", *words)
        return JSONResponse({} if command is None else {"command": command})

    @app.post("/api/v1/scale")
    async def scale(body: Size, user: User) -> Response:
        change = partial(changes.scale, workers=body.workers, person=printable(str(user.get_name()), 100))
        return await limiter.call(done, user, body, f"{body.workers} workers", change)

    @app.post("/api/v1/pause")
    async def pause(body: Ids, user: User) -> Response:
        change = partial(changes.pause, person=printable(str(user.get_name()), 100))
        return await limiter.call(done, user, body, "a pause", change)

    @app.post("/api/v1/resume")
    async def resume(body: Ids, user: User) -> Response:
        change = partial(changes.resume, person=printable(str(user.get_name()), 100))
        return await limiter.call(done, user, body, "the end of a pause", change)

    @app.post("/api/v1/notice")
    async def notice(body: Notice, user: User) -> Response:
        change = partial(changes.notice, worker=body.worker, seconds=body.seconds)
        return await limiter.call(done, user, body, f"a notice for {body.worker}", change)

    @app.post("/api/v1/token")
    async def token(body: Ids, user: User) -> Response:
        return await limiter.call(done, user, body, "a token with which a machine joins", changes.token)

    @app.post("/api/v1/end")
    async def end(body: Ids, user: User) -> Response:
        change = partial(changes.end, person=printable(str(user.get_name()), 100))
        return await limiter.call(done, user, body, "the end", change)

    @app.post("/api/v1/pool")
    async def pool(body: PoolResize, user: User) -> Response:
        return await limiter.call(_resize_pool, body, user)


def _resize_pool(body: PoolResize, user: Any) -> Response:
    name = PoolName.parse(f"{POOL}{body.pool}")
    assert name is not None  # it begins so
    check_pool_name(name.name)
    require(Person(user).may_resize_pool(name.name))
    changes.resize_pool(name, body.workers)
    whom = printable(body.pool, 300)
    log.info("%s has resized pool %s to %d workers", printable(str(user.get_name()), 100), whom, body.workers)
    return JSONResponse({})


def _static_routes(app: FastAPI) -> None:
    static = files("elastic_training") / "static"

    @app.get("/static/{name}")
    async def asset(name: str) -> Response:
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
    async def html() -> HTMLResponse:
        headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}
        try:
            return HTMLResponse((static / "index.html").read_text(encoding="utf-8"), headers=headers)
        except FileNotFoundError:  # A checkout, of which somebody has cleaned up too much.
            return HTMLResponse(f"<!doctype html><title>Elastic training</title><p>{NOT_BUILT}", 503, headers)


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
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return JSONResponse({"message": masked(str(error))}, status, headers)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    """What was sent is not repeated: FastAPI's own answer does, and no JSON has ``1e999`` or half a character."""
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:MOST_ERRORS]]
    return JSONResponse({"message": printable("; ".join(found), 1000)}, 422)
