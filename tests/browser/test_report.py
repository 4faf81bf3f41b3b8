"""The report of a run as people open it: a file, in a browser that has no network, on a screen and on paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.documents import from_json
from elastic_runtime.errors import FailureKind
from elastic_runtime.prices.book import read_prices
from elastic_runtime.run.status import Event, EventKind, Phase, Series, Status, Usage
from elastic_runtime.run.status_failure import FirstFailure
from elastic_runtime.run.status_figures import Hardware
from elastic_training.cost.bill import bill, plain_bill
from elastic_training.report import content_policy, render_report
from tests.browser.test_accessibility import AXE, assert_accessible

RUN = from_json(Status, (Path(__file__).parent / "status.json").read_bytes())
FIRST = FirstFailure(
    2, "worker-2", "worker-2.0.1", 7, 1, RUN.updated, "ValueError: <b>no</b> such sample", traceback="x()"
)
FAILED = replace(RUN, phase=Phase.FAILED, failure=FailureKind.RANK_FAILED, first_failure=FIRST)
EMPTY = Status("run", "uid", Phase.PENDING, "the launcher is starting", RUN.updated)
COST = plain_bill(bill((Usage("spot", "g4dn.xlarge", 36000.0, 3600.0),), read_prices()), "example")
SECTIONS = ["Over time", "Time lost", "Metrics", "Hardware", "Cost", "Events", "Workers"]


def opened(page: Any, folder: Path, status: Status, cost: Mapping[str, Any] | None = None) -> None:
    """From ``file://``. It may ask for nothing but itself; errors in its console fail the test (``page``)."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    file = folder / f"{len(list(folder.iterdir()))}.html"
    file.write_text(render_report(status, {"promise": "kept"}, cost), encoding="utf-8")
    page.goto(file.as_uri())
    page.locator("canvas").first.wait_for()
    assert [url for url in asked if url != "data:,"] == [file.as_uri()]


def titles(page: Any) -> list[str]:
    found: list[str] = page.locator("section.card > h2").all_inner_texts()
    return found


def test_it_shows_the_run_and_asks_nobody(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path, RUN, COST)
    assert titles(page) == SECTIONS
    assert page.get_by_role("navigation").get_by_role("link").all_inner_texts() == SECTIONS
    for name in SECTIONS:
        target = page.get_by_role("link", name=name, exact=True).get_attribute("href")
        assert page.locator(target).count() == 1
    text = page.locator("body").inner_text()
    for shown in ("promise", "kept", "2 → 3 → 2 → 3", "736", "step 736", "g4dn.xlarge", "worker-3 has left"):
        assert shown in text, shown
    assert page.get_by_role("button", name="Scale").count() == 0


def test_loss_and_world_size_have_one_axis_of_time(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path, RUN)
    upper, lower = (page.locator(".overview .u-over").nth(at).bounding_box() for at in (0, 1))
    assert (upper["x"], upper["width"]) == (lower["x"], lower["width"])
    assert page.locator(".overview figcaption").all_inner_texts() == ["loss over time", "Ranks and workers over time"]
    other = replace(RUN, series={"accuracy": RUN.series["accuracy"]})
    opened(page, tmp_path, other)
    assert page.locator(".overview figcaption").first.inner_text() == "accuracy over time"


def test_what_is_not_there_has_no_section(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path, EMPTY)
    assert titles(page) == ["Over time"]
    page.get_by_text("It has not trained").wait_for()
    unmeasured = replace(RUN, series={}, throughput=Series(), sample_throughput=Series(), lost_seconds={"resize": 0.0})
    opened(page, tmp_path, unmeasured)
    assert not {"Metrics", "Time lost"} & set(titles(page))


def test_time_lost_and_what_nobody_knows_of_it(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path, replace(RUN, lost_seconds={"resize": 1.0, "waiting_for_capacity": 4.0}))
    rows = page.locator(".bars tr th").all_inner_texts()
    assert rows == ["waiting for capacity", "resize"]
    page.get_by_text("the time for the script's own checkpoints is unknown").wait_for()


def test_the_rank_that_failed_first_stands_on_top_as_text(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path, FAILED)
    first = page.get_by_role("heading", level=2).first
    assert first.inner_text() == "Rank 2 on worker-2 failed first"
    page.get_by_text("ValueError: <b>no</b> such sample (at step 7, ended with code 1").wait_for()
    assert page.get_by_label("Traceback").inner_text() == "x()"
    older = Event(RUN.updated, EventKind.RANK_FAILED, "rank worker-1.0.1 ended with code 1", "worker-1", 40)
    opened(page, tmp_path, replace(FAILED, first_failure=None, events=(older,)))
    page.get_by_text("Rank worker-1.0.1 ended with code 1 on worker-1").wait_for()


def test_hostile_values_are_drawn_or_left_out(page: Any, tmp_path: Path) -> None:
    nan, start = float("nan"), RUN.updated.timestamp()
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028\x00"
    series = Series(1, (5, 3, 3, 2**60), (start, start, 1e300, nan), (1e300, 1e-300, -1.0, nan))
    hardware = Hardware((start, nan, 1e300), {"cpu_percent": (nan, -5.0, 1e99), "odd": (1.0,)})
    event = Event(RUN.updated, EventKind.LOST, bad)
    flat = Series(1, (1, 2), (start, start), (1e99, 1e-99))
    opened(
        page,
        tmp_path,
        replace(
            RUN,
            run=bad,
            reason=bad,
            series={bad: series, "loss": flat},
            hardware={bad: hardware},
            events=(event,) * 200,
            lost_seconds={bad: 1e300},
        ),
    )
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert bad[:40] in page.locator("h1").inner_text()


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in provider/frontend, as make test-browser does")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Any, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(page, tmp_path, FAILED, COST)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert_accessible(page)


def test_a_phone_scrolls_only_downwards(page: Any, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    uri = f"s3://{'bucket' * 10}/run/traces/timeline-1.json.gz"
    opened(page, tmp_path, replace(FAILED, timeline=uri), COST)
    assert page.get_by_text(uri).is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_on_paper_it_is_light_and_whole(page: Any, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="dark")
    opened(page, tmp_path, RUN, COST)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 718, "height": 1000})
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    boxes = page.locator(".scrolls")
    assert boxes.evaluate_all("all => all.every((each) => each.scrollHeight <= each.clientHeight + 1)")
    widths = page.locator("canvas").evaluate_all("all => all.map((each) => [each.width, each.clientWidth])")
    assert all(drawn > 1.8 * seen for drawn, seen in widths), "finer than the screen"
    assert page.get_by_role("search").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_it_is_drawn_in_the_sandbox_in_which_airflow_serves_it(page: Any) -> None:
    policy = f"{content_policy()}; sandbox allow-scripts; frame-ancestors 'self'"
    headers = {"Content-Type": "text/html", "Content-Security-Policy": policy}
    page.route("**/report", lambda route: route.fulfill(body=render_report(RUN), headers=headers))
    page.goto("http://airflow.example/report")
    page.locator("canvas").first.wait_for()
    assert page.evaluate("self.origin") == "null", "not that of Airflow"
