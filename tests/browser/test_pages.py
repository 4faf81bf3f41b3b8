"""The built pages in a real browser, against a small server that answers as the API does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.console_server import COMMAND, POOL, STATUS, STEERED, TASK, TIMELINE, Server, page_of


def test_the_tables_hold_the_numbers_of_the_run(server: Server, page: Any) -> None:
    page.goto(server.url + TASK)
    for name, series in STATUS["series"].items():
        chart = page.locator("figure", has_text=name).filter(has=page.locator("figcaption", has_text=name))
        chart.locator("summary").click()
        shown = [float(text) for text in chart.locator("tbody td:nth-child(2)").all_inner_texts()]
        assert shown == pytest.approx(series["values"], rel=1e-3)
    assert "map_index=-1" in server.asked[0]


def test_airflow_3_1_writes_ids_into_addresses_as_they_are(server: Server, page: Any) -> None:
    page.goto(server.url + TASK.replace("manual", "manual__2026-01-02T03:04:05+00:00"))
    page.get_by_role("heading", name="World size", exact=True).wait_for()
    assert "run_id=manual__2026-01-02T03%3A04%3A05%2B00%3A00" in server.asked[0]


def test_the_sizes_and_what_explains_them(server: Server, page: Any) -> None:
    page.goto(server.url + TASK)
    sizes = [str(world["size"]) for world in STATUS["history"]]
    page.get_by_text(f"ranks that train: {' → '.join(sizes)}").wait_for()
    notices = sum(event["kind"] == "notice" for event in STATUS["events"])
    assert page.get_by_label("Marks").get_by_text(f"notice: {notices}").is_visible()


def test_a_deadline_a_standstill_and_the_command_that_rehearses_the_task(server: Server, page: Any) -> None:
    server.answers["task"] = page_of(status=STEERED)
    page.goto(server.url + TASK)
    page.get_by_text("27.60 $ left of 40.00 $").wait_for()
    assert page.get_by_label("Marks").get_by_text("standstill, difference, straggler: 1").is_visible()
    command = page.get_by_label("Command that rehearses this task").inner_text()
    assert command.startswith("elastic-training rehearse --steps 3000 --step-seconds 0.25 --min 1 --start 2 --max 4")


def test_workers_are_chosen_for_the_hardware(server: Server, page: Any) -> None:
    page.goto(server.url + TASK)
    chooser = page.get_by_role("group", name="Workers")
    chooser.get_by_role("button", name="none").click()
    assert page.get_by_text("Processor (% of a core)").count() == 0
    name = STATUS["workers"][0]["name"]
    chooser.get_by_label(name).check()
    page.get_by_text(f"newest: {name} 95.5").wait_for()


def test_events_are_found_by_kind_and_words(server: Server, page: Any) -> None:
    page.goto(server.url + TASK)
    search = page.get_by_role("search", name="Events")
    search.get_by_label("Kind").select_option("notice")
    notices = [event for event in STATUS["events"] if event["kind"] == "notice"]
    search.get_by_text(f"{len(notices)} of {len(STATUS['events'])}").wait_for()
    search.get_by_label("Text").fill("no such words")
    search.get_by_text(f"0 of {len(STATUS['events'])}").wait_for()


def test_scale_asks_for_the_number_with_our_header(server: Server, page: Any) -> None:
    page.goto(server.url + TASK)
    field = page.get_by_label("Workers", exact=True).and_(page.locator("input"))
    field.fill("9")
    page.get_by_role("button", name="Scale").click()
    assert field.evaluate("each => each.validity.rangeOverflow")
    field.fill("3")
    page.get_by_role("button", name="Scale").click()
    page.get_by_text("3 workers are asked for").wait_for()

    [(path, body, header)] = server.posts
    assert path == "/elastic-training/api/v1/scale"
    assert body == {"dag_id": "digits", "run_id": "manual", "task_id": "train", "map_index": -1, "workers": 3}
    assert header == "1"


def test_links_open_from_within_airflows_frame(server: Server, page: Any) -> None:
    page.goto(server.url + "around")
    with page.expect_popup() as opened:
        page.frame_locator("iframe").get_by_role("link", name="Log").click()
    assert opened.value.url.endswith("/log")


def test_the_timeline_is_downloaded_from_within_airflows_frame(server: Server, page: Any) -> None:
    page.goto(server.url + "around")
    with page.expect_download() as begun:
        page.frame_locator("iframe").get_by_role("link", name="Timeline for chrome://tracing").click()
    download = begun.value
    assert download.suggested_filename == "timeline.json.gz"
    assert download.path().read_bytes() == TIMELINE


def test_who_may_not_edit_sees_no_button(server: Server, page: Any) -> None:
    server.answers["task"] = page_of(may_edit=False)
    page.goto(server.url + TASK)
    page.get_by_role("heading", name="Workers").wait_for()

    assert page.get_by_role("button", name="Scale").count() == 0
    assert page.get_by_role("button", name="Send a reclaim notice").count() == 0


def test_ending_is_confirmed_first(server: Server, page: Any) -> None:
    page.goto(server.url + TASK)
    page.get_by_role("button", name="End the run…").click()
    assert server.posts == []
    page.get_by_role("button", name="End it").click()
    page.get_by_text("The run has been asked to end").wait_for()

    assert server.posts[0][0] == "/elastic-training/api/v1/end"


def test_a_token_is_shown_once(server: Server, page: Any) -> None:
    page.goto(server.url + TASK)
    page.get_by_role("button", name="End the run…").wait_for()
    assert page.get_by_role("button", name="Add a machine…").count() == 0
    server.answers["task"] = page_of(joinable=True)
    page.goto(server.url + TASK)
    page.get_by_role("button", name="Add a machine…").click()
    page.get_by_text(COMMAND).wait_for()
    assert server.posts == [("/elastic-training/api/v1/token", server.posts[0][1], "1")]
    page.get_by_role("button", name="Close").click()
    page.get_by_text(COMMAND).wait_for(state="detached")


def test_the_rank_that_failed_first_is_on_top(server: Server, page: Any) -> None:
    why = {"who": "Rank 2 on worker-2", "message": "ValueError: no such sample", "details": "at step 7"}
    why["traceback"] = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no such sample'
    server.answers["task"] = page_of(live=False, status={**STATUS, "phase": "failed"}, why=why)
    page.goto(server.url + TASK)
    assert page.get_by_role("heading", level=2).first.inner_text() == "Rank 2 on worker-2 failed first"
    assert 'File "train.py", line 3' in page.get_by_label("Traceback").inner_text()


def test_text_of_a_run_is_no_markup_and_no_script(server: Server, page: Any) -> None:
    bad = "<img src=x onerror=alert(1)>"
    server.answers["task"] = page_of(status={**STATUS, "reason": bad})
    page.goto(server.url + TASK)
    page.get_by_text(bad).first.wait_for()

    assert page.locator("img").count() == 0
    assert page.locator('a[href^="javascript"]').count() == 0
    assert page.locator('a[href^="s3"]').count() == 0


def test_a_task_without_a_run_says_why(server: Server, page: Any) -> None:
    server.answers["task"] = page_of(status=None, live=False, message="This task does not train.")
    page.goto(server.url + TASK)

    page.get_by_text("This task does not train.").wait_for()


def test_all_runs_are_listed_with_places_that_are_not_reached(server: Server, page: Any) -> None:
    row = {"name": "digits-train", "place": "local", "phase": "running", "reason": "", "world_size": 2}
    row |= {"target_size": 3, "step": 70, "started": None, "finished": None, "updated": STATUS["updated"], "cost": None}
    row |= {"dag_id": "digits", "run_id": "manual", "task_id": "train", "map_index": -1}
    unreachable = [{"place": "cluster", "message": "no route"}]
    server.answers["runs"] = {"total": 1, "runs": [row], "unreachable": unreachable, "incomplete": False}
    page.goto(server.url)
    page.get_by_text("cluster is not reached: no route").wait_for()
    page.get_by_label("Phase").select_option("failed")
    page.wait_for_function("() => performance.getEntriesByType('resource').some(e => e.name.includes('phase=failed'))")
    page.get_by_role("link", name="digits-train").click()
    page.get_by_role("heading", name="World size", exact=True).wait_for()


def test_costs_of_all_runs_are_summed_up_by_what_the_viewer_chooses(server: Server, page: Any) -> None:
    server.answers["runs"] = {"total": 0, "runs": [], "unreachable": [], "incomplete": False}
    figures = {"runs": 3, "unpriced": 1, "seconds": 7200.0, "trained_seconds": 5400.0, "idle_seconds": 1800.0}
    figures |= {"lost_seconds": 36.0, "cost": "1.50", "idle_cost": "0.40", "lost_cost": "0.02"}
    sums = [{"name": "digits", **figures}]
    server.answers["costs"] = {"by": "dag", "currency": "USD", "totals": sums, "all": {"name": "all", **figures}}
    page.goto(server.url)
    page.get_by_text("Costs of all runs").click()
    table = page.get_by_role("region", name="Costs")
    table.wait_for()
    rows = [row.split() for row in table.get_by_role("row").all_inner_texts()[1:]]
    assert rows[0] == ["digits", "3", "1.50", "0.50", "0.01", "1.50", "0.40", "0.02"]
    assert rows[1][0] == "All"
    page.get_by_text("1 of these runs have no price").wait_for()
    page.get_by_label("By").select_option("team")
    page.wait_for_function("() => performance.getEntriesByType('resource').some(e => e.name.includes('by=team'))")
    assert page.get_by_role("link", name="CSV").get_attribute("href") == "api/v1/costs?by=team&csv=true"


def test_a_pool_is_listed_with_who_has_what_and_why(server: Server, page: Any) -> None:
    server.answers["runs"] = {"total": 0, "runs": [], "unreachable": [], "incomplete": False, "pools": [POOL]}
    page.goto(server.url)
    pool = page.get_by_role("region", name="Pool team-a", exact=True)
    pool.get_by_text("4 of 4 workers train, 0 are warm and free; runs that you may not see have 2").wait_for()
    rows = pool.get_by_role("row").all_inner_texts()
    assert [row.split("\t")[1:] for row in rows[1:]] == [
        ["10", "1", "1", "has what it wishes for"],
        ["1", "1", "4", "priority 1 beside digits-1 (10)"],
    ]
    link = pool.get_by_role("link", name="nightly · train")
    assert "dag_id=nightly&run_id=manual&task_id=train" in link.get_attribute("href")


def test_a_pool_is_resized_by_who_may(server: Server, page: Any) -> None:
    runs = {"total": 0, "runs": [], "unreachable": [], "incomplete": False}
    server.answers["runs"] = {**runs, "pools": [POOL, {**POOL, "name": "team-b", "may_edit": False}]}
    page.goto(server.url)
    pool = page.get_by_role("region", name="Pool team-a", exact=True)
    size = pool.get_by_label("Workers at most")
    assert (size.input_value(), size.get_attribute("min")) == ("4", "1")
    size.fill("6")
    pool.get_by_role("button", name="Resize").click()
    pool.get_by_text("Pool team-a has 6 workers at most").wait_for()
    assert server.posts == [("/elastic-training/api/v1/pool", {"pool": "team-a", "workers": 6}, "1")]
    other = page.get_by_role("region", name="Pool team-b", exact=True)
    other.wait_for()
    assert other.get_by_role("button", name="Resize").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_width_in_both_themes(server: Server, page: Any, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(server.url + TASK)
    page.locator("canvas").first.wait_for()

    assert page.evaluate("document.documentElement.scrollWidth") <= width


def list_of(count: int) -> dict[str, Any]:
    """So many runs with long names."""
    rows = [
        {
            "name": f"nightly-train-the-model-of-the-{number:02}th-region-ec6ab9d3ca", "place": "cluster/training",
            "phase": "suspended", "reason": "", "world_size": 2, "target_size": 4, "step": 7, "cost": None,
            "started": None, "finished": None, "updated": "2026-11-22T12:00:00+00:00", "dag_id": "nightly",
            "run_id": f"manual__{number}", "task_id": "train_the_model_of_the_region", "map_index": number,
        }
        for number in range(count)
    ]  # fmt: skip
    return {"total": count, "runs": rows, "unreachable": [], "incomplete": False}


def test_the_list_shows_all_rows_of_a_page(page: Any, server: Server) -> None:
    server.answers["runs"] = list_of(34)
    page.goto(server.url)
    box = page.get_by_role("region", name="Runs")
    box.locator("tbody tr").nth(33).wait_for()
    assert box.evaluate("each => each.scrollHeight <= each.clientHeight + 1"), "the page scrolls, and no box in it"


def test_the_phase_is_seen_on_a_phone(page: Any, server: Server) -> None:
    server.answers["runs"] = list_of(3)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(server.url)
    phase = page.locator("tbody .phase").first
    phase.wait_for()
    seen = phase.bounding_box()
    assert seen["x"] + seen["width"] <= 390


def test_what_the_viewer_may_not_read_is_said(page: Any, server: Server) -> None:
    server.answers["task"] = page_of(hidden=["logs", "results"])
    page.goto(server.url + TASK)
    page.get_by_text("What ranks wrote is hidden").wait_for()
    page.get_by_text("Metrics, files and cost are hidden").wait_for()
