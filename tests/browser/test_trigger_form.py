"""The example with a form, as a person uses it in Airflow's UI: fill in, trigger, see it succeed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from demo_kit.digits_run import FINAL
from tests.browser.airflow_run import Place
from tests.paced import until

pytestmark = pytest.mark.timeout(600)
DAG_ID = "example_form"
PAGE_TIMEOUT = 60_000
"""Milliseconds for something to be seen, on a machine with other things to do."""
PICTURES = os.environ.get("SCREENSHOTS", "")


def picture(page: Any, name: str) -> None:
    """For docs/images, where ``make screenshots`` asks for it."""
    if PICTURES:
        Path(PICTURES, f"{name}.png").write_bytes(page.screenshot())


TITLES = {
    "Training": ("Epochs", "Learning rate", "Batch size"),
    "Workers": ("Fewest", "First", "Most"),
    "Machines": ("Machine type", "GPUs", "Shared memory", "Storage"),
}
"""Of the fields, by section."""


def fill(page: Any, section: str, values: Mapping[str, str]) -> None:
    """Fill in those fields of a section that do not keep their defaults.

    Airflow 3.3 shows one section at a time, and a section's title is the button that opens it. Airflow 3.4 shows all
    sections, each under a heading.
    """
    opens = page.get_by_role("button", name=section, exact=True)
    opens.or_(page.get_by_role("heading", name=section, exact=True)).first.wait_for(timeout=PAGE_TIMEOUT)
    if opens.count():
        opens.click(timeout=PAGE_TIMEOUT)
    for title in TITLES[section]:
        page.get_by_text(re.compile(f"^{title}")).first.wait_for(timeout=PAGE_TIMEOUT)
    for name, value in values.items():
        page.locator(f"[id='number-input:element_{name}'] input").fill(value, timeout=PAGE_TIMEOUT)


def test_a_person_fills_in_the_form_and_sees_the_training_succeed(place: Place) -> None:
    with place.visit("ann", f"/dags/{DAG_ID}", viewport={"width": 1280, "height": 900}) as page, place.api() as api:
        page.get_by_test_id("trigger-dag-button").click(timeout=PAGE_TIMEOUT)
        fill(page, "Training", {"epochs": "12", "rate": "0.04"})
        fill(page, "Workers", {"min_workers": "2"})
        picture(page, "trigger-form")
        fill(page, "Machines", {"gpus": "0"})
        page.get_by_test_id("trigger-dag-submit").click()

        [begun] = until(lambda: api.runs(DAG_ID), "the form starts a run", pause=0.3)
        run_id, conf = begun["dag_run_id"], begun["conf"]
        assert (conf["epochs"], conf["rate"], conf["min_workers"], conf["max_workers"]) == (12, 0.04, 2, 3)
        state = until(lambda: over(api.run_state(DAG_ID, run_id)), "the run ends", max_wait=300, pause=0.3)
        assert state == "success"
        result = api.xcom(DAG_ID, run_id, "train")
        assert (result["steps"], result["world_sizes"]) == (12 * 2000 // 100, [2])

        page.goto(f"{place.stack.url}/dags/{DAG_ID}/runs/{quote(run_id, safe='')}")
        page.get_by_test_id("state-badge").filter(has_text=re.compile("success", re.IGNORECASE)).first.wait_for(
            timeout=PAGE_TIMEOUT
        )
        picture(page, "triggered-run")


def over(state: str) -> str | None:
    return state if state in FINAL else None
