"""A place or a store that takes connections and says nothing, and 200 people who look: Airflow's other routes go on."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import httpx
import pytest
import uvicorn
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from elastic_training.clusters.fake import FakeCluster
from elastic_training.console import asking, limiter
from tests.unit.provider.operator_bench import deferred, operator, trying
from tests.unit.provider.page_bench import API, IDS, PREFIX, Rendered, api_server, rendering, seeing

VIEWERS = 200
OTHERS_WAIT = 2.0
"""Seconds, at most."""


def given_up() -> list[threading.Thread]:
    """What works at requests, or still asks, though nobody waits for it."""
    return [each for each in threading.enumerate() if each.name == "elastic-training daemon"]


@pytest.fixture
def silent_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The S3 server of a connection: the kernel takes its connections, and nobody reads them."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        said = {"conn_type": "aws", "login": "key", "password": "planted", "extra": {"endpoint_url": endpoint}}
        monkeypatch.setenv("AIRFLOW_CONN_SILENT", json.dumps(said))
        yield
    for thread in given_up():  # Its connections are reset now.
        thread.join(60)


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent_store: None) -> Rendered:
    found = rendering(monkeypatch, tmp_path, "s3://bucket/runs")
    next(iter(found.values()))["checkpoint_conn_id"] = "silent"
    return found


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """By the server that Airflow uses; its address."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=1024)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", lifespan="off", loop="asyncio", timeout_keep_alive=60)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


async def looks(url: str, path: str, params: dict[str, Any]) -> tuple[Counter[int], list[str], float, int]:
    """What viewers are answered; how long another route waits, as a rule; and how many shared threads were taken.

    As a rule: the longest is the machine's, which may have other things to do.
    """
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client,
        httpx.AsyncClient(base_url=url, timeout=60) as apart,
    ):
        viewers = asyncio.gather(*(client.get(path, params=params) for _ in range(VIEWERS)))
        waits, taken = [], 0
        while not viewers.done():
            taken = max(taken, (await apart.get("/taken")).json())
            began = monotonic()
            assert (await apart.get("/others")).status_code == 200
            waits.append(monotonic() - began)
            await asyncio.wait([viewers], timeout=0.05)
        answers = await viewers
    return Counter(each.status_code for each in answers), [each.text for each in answers], median(waits), taken


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    app = api_server(monkeypatch)

    @app.get("/others")
    def others() -> dict[str, str]:  # Not asynchronous: in a thread that all such routes share, as many of Airflow's.
        return {}

    @app.get("/taken")
    async def taken() -> float:
        return current_default_thread_limiter().borrowed_tokens

    return app


@pytest.mark.parametrize("path", [f"{API}/task", f"{PREFIX}/report"])
def test_a_silent_store_holds_up_no_other_route(fake: FakeCluster, app: FastAPI, rendered: Rendered, path: str) -> None:
    with served(app) as url:
        codes, texts, wait, taken = asyncio.run(looks(url, path, dict(IDS)))
    assert taken == 0
    assert wait < OTHERS_WAIT
    assert set(codes) <= {200, 503}
    assert all("has not answered" in text or "were busy" in text for text in texts)
    # Not only those of the first requests: a silent store is asked again every few seconds, by one request.
    assert len(given_up()) <= limiter.THREADS + asking.THREADS, "it is bounded"


@pytest.mark.parametrize("path", ["task", "dag-run", "runs"])
def test_a_silent_place_holds_up_no_other_route(
    fake: FakeCluster, app: FastAPI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    rendering(monkeypatch, tmp_path)

    async def silent(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(fake, "find", silent)
    monkeypatch.setattr(fake, "list", silent)
    params = {"task": IDS, "dag-run": {"dag_id": IDS["dag_id"], "run_id": IDS["run_id"]}, "runs": {}}[path]
    with served(app) as url:
        codes, texts, wait, taken = asyncio.run(looks(url, f"{API}/{path}", dict(params)))
    assert taken == 0
    assert wait < OTHERS_WAIT
    assert set(codes) <= {200, 503}
    assert path == "dag-run" or all("has not answered" in text or "were busy" in text for text in texts)


def test_the_deadline_is_one_for_place_and_store(
    fake: FakeCluster, rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(fake, "find", silent)
    began = monotonic()
    page = seeing(monkeypatch).get(f"{API}/task", params=IDS).json()
    assert monotonic() - began < asking.LOOK + OTHERS_WAIT
    assert "status from local" in page["message"]
    assert "cannot be read" in page["message"]


def test_what_was_silent_is_not_asked_again_at_once(
    fake: FakeCluster, rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = seeing(monkeypatch)
    client.get(f"{API}/task", params=IDS)
    began = monotonic()
    assert "it is asked again in" in client.get(f"{API}/task", params=IDS).json()["message"]
    assert monotonic() - began < OTHERS_WAIT


def test_a_run_that_lives_is_shown_while_the_store_is_silent(
    fake: FakeCluster, rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred(operator(deferrable=True), trying(2))
    page = seeing(monkeypatch).get(f"{API}/task", params=IDS).json()
    assert page["status"]["phase"] == "running"
    assert "cannot be read" in page["message"]


def test_a_thread_that_cannot_be_started_costs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the page would answer nobody any more once that has happened a few times."""
    turns = limiter.Limiter(threads=1, max_wait=1.0)

    async def ask() -> str:
        return await turns.call(lambda: "answered")

    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(limiter, "in_daemon", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            asyncio.run(ask())
    assert asyncio.run(ask()) == "answered"
