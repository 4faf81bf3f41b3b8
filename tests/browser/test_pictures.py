"""Pictures of a real run's pages for docs/images: ``make screenshots``. To be looked at before they are committed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.pool.settings import PoolSettings
from elastic_training.clusters.pool import have_up, take_down
from tests.airflow.real_airflow import TRAINER
from tests.browser.airflow_run import HELD_AT, POOL, POOLED, Place, RunInAirflow
from tests.paced import Script

FOLDER = os.environ.get("SCREENSHOTS", "")
pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(not FOLDER, reason="only by make screenshots")]

PAGE_TIMEOUT = 60_000
"""Milliseconds for something to be seen, on a machine with other things to do."""
STORY = Script("exact.py", epochs=60, holds=(110, 230, 330, 400), step_seconds=0.02)


@pytest.fixture(scope="module")
def run(place: Place) -> RunInAirflow:
    """2 ranks, 3, one is taken and replaced, 4; it stands, and goes on when told to."""
    run = place.start("shown", STORY)
    run.at(110)
    change(place, run, "scale", workers=3)
    run.worlds(2, 3)
    run.go(110)
    run.at(230)
    change(place, run, "notice", worker=run.worker(2).name, seconds=30.0)
    run.worlds(2, 3, 2, 3)
    run.go(230)
    run.at(330)
    change(place, run, "scale", workers=4)
    run.worlds(2, 3, 2, 3, 4)
    run.go(330)
    run.at(400)
    return run


def change(place: Place, run: RunInAirflow, what: str, **more: Any) -> None:
    with place.visit("ann", run.page) as page:
        assert page.evaluate(ASK, [what, {**run.ids, **more}]) == 200


ASK = """([path, body]) => fetch(`api/v1/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Elastic-Training": "1" },
    body: JSON.stringify(body),
}).then((answer) => answer.status)"""


def neutral(place: Place, page: Any) -> None:
    """Where this machine's folders and its name are, others."""

    def answer(route: Any) -> None:
        told = route.fetch()
        text = told.text().replace(str(place.folder), "/data").replace(f'"{socket.gethostname()}"', '"node-1"')
        route.fulfill(response=told, body=text)

    page.context.route("**/elastic-training/api/**", answer)


def shown(place: Place, path: str, name: str, until: str, scheme: str, width: int = 1280, height: int = 1000) -> None:
    """Take one picture, once ``until`` is on the page; ``name`` says of what."""
    view = {"width": width, "height": height}
    with place.visit("ann", "/elastic-training/static/page.css", viewport=view, color_scheme=scheme) as page:
        neutral(place, page)
        page.goto(place.stack.url + path)
        around = page.frame_locator("iframe") if "/plugin/" in path else page
        around.locator(until).first.wait_for(timeout=PAGE_TIMEOUT)
        Path(FOLDER, f"{name}-{width}-{scheme}.png").write_bytes(page.screenshot())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(place: Place, run: RunInAirflow, scheme: str) -> None:
    shown(place, f"{run.in_airflow}/plugin/elastic-training-task", "within-airflow", "canvas", scheme)
    shown(place, run.page, "live", "canvas", scheme, height=2100)
    shown(place, run.page, "live", "canvas", scheme, width=390, height=1500)


@pytest.mark.parametrize(("width", "height"), [(1280, 345), (390, 520)])
def test_pictures_of_the_list(
    place: Place, held: RunInAirflow, finished: RunInAirflow, width: int, height: int
) -> None:
    shown(place, "/elastic-training/", "runs", "tbody tr", "light", width=width, height=height)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_the_end(place: Place, run: RunInAirflow, scheme: str) -> None:
    run.go_on()
    run.wait_until_over("success")
    shown(place, run.page, "over", "canvas", scheme, height=1500)
    shown(place, run.page, "over", "canvas", scheme, width=390, height=1500)


@pytest.fixture
def shared(place: Place) -> Iterator[tuple[RunInAirflow, ...]]:
    """Two runs that stand: the second has what the first leaves of a pool."""
    root = place.trainings.root
    have_up(root, TRAINER, POOL, PoolSettings(POOL, maximum=4))
    script = Script("exact.py", holds=(HELD_AT,), step_seconds=0.1)
    runs = tuple(place.start(dag_id, script, dag_id) for dag_id in POOLED)
    for run, size in zip(runs, (3, 1), strict=True):
        run.until_status(lambda status, size=size: status.world_size == size, f"{size} ranks train")
    yield runs
    for run in runs:
        run.go_on()
        run.wait_until_over("success")
    take_down(root, POOL)


@pytest.mark.usefixtures("shared")
def test_pictures_of_a_pool(place: Place) -> None:
    shown(place, "/elastic-training/", "pool", "section tbody tr", "light", height=455)
