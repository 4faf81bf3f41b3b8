"""The page in a real browser, inside a real Airflow, of real trainings: live, changed by its buttons, and over."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from elastic_runtime.run.status import Event, EventKind, Phase, Status
from tests.browser.airflow_run import HELD_AT, Place, RunInAirflow
from tests.paced import Script, sizes_of

pytestmark = pytest.mark.timeout(600)

PAGE_TIMEOUT = 60_000
"""Milliseconds for something to be seen, on a machine with other things to do."""


def figure(page: Any, name: str) -> Any:
    """The value at the top of the page with that name."""
    return page.locator("dl.figures div").filter(has=page.get_by_text(name, exact=True)).locator("dd")


def curve(page: Any, name: str) -> list[float]:
    """Values of a metric, by the table of its chart."""
    chart = page.locator("figure").filter(has=page.locator("figcaption", has_text=re.compile(f"^{name}$")))
    chart.locator("summary").click()
    return [float(text) for text in chart.locator("tbody td:nth-child(2)").all_inner_texts()]


def steps_of(status: Status, name: str) -> list[int]:
    """Of which there is a value of this metric."""
    return list(status.series[name].steps) if name in status.series else []


def assert_shows(page: Any, status: Status) -> None:
    """Numbers of the run that stand still, since it does."""
    page.get_by_text(f"ranks that train: {' → '.join(map(str, sizes_of(status)))};").wait_for(timeout=PAGE_TIMEOUT)
    assert page.locator("h2 .phase").inner_text().lower() == status.phase
    assert status.progress is not None, "GlobalBatches knows how many there are"
    done = f"{status.progress.percent:.0f} % of {status.progress.steps}"
    assert figure(page, "Step").inner_text() == f"{status.step}\n{done}"
    assert figure(page, "World size").inner_text().startswith(f"{status.world_size}\n")
    assert curve(page, "loss") == pytest.approx(status.series["loss"].values, rel=1e-3)
    named = page.get_by_role("region", name="Table of workers").locator("tbody th").all_inner_texts()
    assert sorted(named) == sorted(worker.name for worker in status.workers)


def test_a_live_run_shows_its_real_numbers(place: Place, held: RunInAirflow) -> None:
    losses = held.ledger().losses()
    status = held.until_status(
        lambda status: status.step == HELD_AT and steps_of(status, "loss") == list(losses), "the losses of all steps"
    )
    assert status.series["loss"].values == pytest.approx(list(losses.values()), rel=1e-5)
    with place.visit("ann", held.page) as page:
        assert_shows(page, status)
        assert page.get_by_text("live", exact=True).is_visible()


def test_airflows_pages_lead_to_the_run(place: Place, held: RunInAirflow) -> None:
    with place.visit("ann", held.in_airflow) as page:
        page.get_by_role("link", name="Training", exact=True).click(timeout=PAGE_TIMEOUT)
        page.frame_locator("iframe").get_by_role("heading", name=held.name).wait_for(timeout=PAGE_TIMEOUT)
        page.goto(place.stack.url + held.in_airflow.partition("/tasks/")[0])
        page.get_by_role("link", name="Trainings", exact=True).click(timeout=PAGE_TIMEOUT)
        frame = page.frame_locator("iframe")
        frame.get_by_role("link", name="train", exact=True).click(timeout=PAGE_TIMEOUT)
        frame.get_by_role("heading", name=held.name).wait_for(timeout=PAGE_TIMEOUT)


def test_the_list_of_all_runs_leads_to_it(place: Place, held: RunInAirflow) -> None:
    with place.visit("ann", "/elastic-training/") as page:
        page.get_by_role("link", name=held.name).click(timeout=PAGE_TIMEOUT)
        page.get_by_role("heading", name=held.name).wait_for(timeout=PAGE_TIMEOUT)


def test_the_buttons_change_the_run(place: Place) -> None:
    run = place.start("changed", Script("exact.py", holds=(14, 28)))
    run.at(14)
    with place.visit("ann", run.page) as page:
        field = page.get_by_label("Workers", exact=True).and_(page.locator("input"))
        field.fill("3", timeout=PAGE_TIMEOUT)
        page.get_by_role("button", name="Scale").click()
        run.worlds(2, 3)
        page.get_by_text("ranks that train: 2 → 3;").wait_for(timeout=PAGE_TIMEOUT)

        taken = run.worker(2).name
        page.get_by_role("button", name=f"Send a reclaim notice to {taken}").click()
        run.until_status(lambda status: sizes_of(status)[:3] == [2, 3, 2], "the drill's worker goes")
        page.get_by_text("ranks that train: 2 → 3 → 2").wait_for(timeout=PAGE_TIMEOUT)
        assert run.events(EventKind.NOTICE)[0].endswith(taken)
        page.get_by_label("Marks").get_by_text("notice: 1").wait_for(timeout=PAGE_TIMEOUT)

        page.get_by_role("button", name="End the run…").click()
        page.get_by_role("button", name="End it").click()
        page.locator(".phase.failed").wait_for(timeout=PAGE_TIMEOUT)
        page.get_by_text("ann has ended it on its page").first.wait_for(timeout=PAGE_TIMEOUT)
        assert page.get_by_role("button", name="Scale").count() == 0
    assert run.status().phase is Phase.FAILED
    run.wait_until_over("failed")


def test_of_a_run_that_is_over_every_try_is_shown(place: Place, finished: RunInAirflow) -> None:
    with place.visit("ann", finished.page) as page:
        assert_shows(page, finished.status())
        assert page.locator(".phase.succeeded").is_visible()
        assert page.get_by_role("button", name="Scale").count() == 0

        with page.expect_download() as begun:
            page.get_by_role("link", name="Timeline for chrome://tracing").click()
        timeline = json.loads(gzip.decompress(begun.value.path().read_bytes()))
        assert any("ALLREDUCE" in event.get("name", "") for event in timeline["traceEvents"])

        page.get_by_label("Try").select_option("1")
        page.get_by_role("heading", name=re.compile(r"Rank \d on worker-\d failed first")).wait_for(
            timeout=PAGE_TIMEOUT
        )
        assert "ValueError: no label for sample 16" in page.get_by_label("Traceback").inner_text()
        report = page.get_by_role("link", name="Report")
        with page.expect_popup() as opened:
            report.click()
        opened.value.get_by_text("ValueError: no label for sample 16").first.wait_for(timeout=PAGE_TIMEOUT)
        assert "try_number=1" in opened.value.url


def test_a_viewer_sees_the_run_and_changes_nothing(place: Place, held: RunInAirflow) -> None:
    before = held.status()
    with place.visit("vic", held.page) as page:
        page.get_by_role("heading", name="Workers").wait_for(timeout=PAGE_TIMEOUT)
        for name in ("Scale", "End the run", "Send a reclaim notice"):
            assert page.get_by_role("button", name=name).count() == 0
        for path, more in CHANGES.items():
            answer = page.evaluate(ASK, [path, {**held.ids, **more}])
            assert answer == 403, path
    assert_untouched(held, before)


def test_who_is_not_logged_in_sees_no_run(place: Place, held: RunInAirflow) -> None:
    with place.visit(None, held.page) as page:
        page.locator("[role=status]").wait_for(timeout=PAGE_TIMEOUT)
        assert page.evaluate("fetch(`api/v1/task${location.search}`).then((answer) => answer.status)") == 401
        assert page.get_by_text(held.name).count() == 0


CHANGES: dict[str, dict[str, Any]] = {
    "scale": {"workers": 3},
    "notice": {"worker": "worker-0", "seconds": 30.0},
    "end": {},
}
ASK = """([path, body]) => fetch(`api/v1/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Elastic-Training": "1" },
    body: JSON.stringify(body),
}).then((answer) => answer.status)"""


class _Elsewhere(BaseHTTPRequestHandler):
    """A page of somebody else's, with nothing on it: the test has its script run there."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Not on the test's output."""


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """Its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


FORM = """([address, body]) => {
    const form = document.createElement("form");
    const field = document.createElement("input");
    [field.name, field.value] = [JSON.stringify(body).slice(0, -1) + ',"x":"', '"}'];
    form.append(field);
    Object.assign(form, { method: "POST", enctype: "text/plain", action: address });
    document.body.append(form);
    form.submit();
}"""
FETCH = """([address, body, init]) => fetch(address, {
    method: "POST", credentials: "include", body: JSON.stringify(body), ...init,
}).then(() => "let through", () => "stopped")"""
FETCHES: list[dict[str, Any]] = [
    {"mode": "no-cors", "headers": {"Content-Type": "text/plain"}},
    {"mode": "no-cors", "headers": {"Content-Type": "application/json", "X-Elastic-Training": "1"}},
    {"headers": {"Content-Type": "application/json", "X-Elastic-Training": "1"}},
]
"""The browser takes the headers away from the second, and asks Airflow before it sends the third."""


FRAME = "(address) => { document.body.append(Object.assign(document.createElement('iframe'), { src: address })) }"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_of_another_origin_changes_nothing(place: Place, held: RunInAirflow, elsewhere: int, host: str) -> None:
    """On 127.0.0.1, of which the port is no part of the site, the browser sends Airflow's cookie along."""
    before = held.status()
    with place.visit("ann", held.page) as own, own.context.expect_page() as another:
        own.evaluate("address => { window.open(address) }", f"http://{host}:{elsewhere}/")
        page, told = another.value, []
        page.wait_for_load_state()
        page.on("response", lambda answer: told.append((answer.request.method, answer.status)))
        for path, more in CHANGES.items():
            address, body = f"{place.stack.url}/elastic-training/api/v1/{path}", {**held.ids, **more}
            ends = [page.evaluate(FETCH, [address, body, each]) for each in FETCHES]
            assert ends == ["let through", "let through", "stopped"]
            with page.expect_navigation():
                page.evaluate(FORM, [address, body])
            assert "is missing" in page.locator("body").inner_text()
            page.go_back()
    assert {status for method, status in told if method == "POST"} == {403}
    assert len([method for method, _ in told if method == "POST"]) == 3 * len(CHANGES)
    assert_untouched(held, before)


def test_a_page_of_another_origin_cannot_frame_it(place: Place, held: RunInAirflow, elsewhere: int) -> None:
    """Buttons that are seen cannot be clicked by those who think that they click something else."""
    with place.visit("ann", f"http://127.0.0.1:{elsewhere}/") as page:
        with page.expect_console_message(lambda line: "frame-ancestors" in line.text):
            page.evaluate(FRAME, place.stack.url + held.page)
        assert page.frame_locator("iframe").get_by_text(held.name).count() == 0


def assert_untouched(run: RunInAirflow, before: Status) -> None:
    """It trains on, as large as it was, and nobody has asked for anything."""
    after = run.status()
    assert (after.phase, after.target_size, sizes_of(after)) == (before.phase, before.target_size, sizes_of(before))
    assert _asked(after) == _asked(before)


def _asked(status: Status) -> list[Event]:
    """Events but those of checkpoints, one of which may be written at any moment."""
    return [each for each in status.events if each.kind is not EventKind.CHECKPOINT]
