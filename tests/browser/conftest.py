"""One headless Chromium for all tests, and one real Airflow with two people, for those that ask for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.browser.airflow_run import HELD_AT, Place, RunInAirflow, real_airflow
from tests.browser.console_server import Server, serving
from tests.paced import Script

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None or find_spec("playwright") is None:
        pytest.skip("needs Debian's chromium, and playwright in .venv")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Of somebody who is not logged in; whatever the page complains of fails the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda line: page.errors.append(line.text) if line.type == "error" else None)
    yield page
    assert page.errors == []
    page.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as it:
        yield it


@pytest.fixture(scope="session")
def place(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with real_airflow(browser, tmp_path_factory.mktemp("airflow")) as it:
        yield it


@pytest.fixture(scope="session")
def retried(place: Place) -> RunInAirflow:
    """Its first try fails; to be awaited by those who want its end."""
    return place.start("retried", Script("exact.py", epochs=6, raises=(16,), step_seconds=0.05))


@pytest.fixture(scope="session")
def held(place: Place, retried: RunInAirflow) -> RunInAirflow:
    """A run that stands at a step and is only looked at."""
    run = place.start("held", Script("exact.py", holds=(HELD_AT,), step_seconds=0.1))
    run.at(HELD_AT)
    return run


@pytest.fixture(scope="session")
def finished(retried: RunInAirflow) -> RunInAirflow:
    """A run that is over: its second try has succeeded."""
    retried.wait_until_over("success")
    return retried
