"""The pages for those who see little, use no mouse, or hold a phone: axe's rules, the keyboard alone, 390 px."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.console_server import POOL, REPOSITORY, STATUS, STEERED, TASK, Server, page_of

AXE = REPOSITORY / "provider/frontend/node_modules/axe-core/axe.min.js"
CHECK = "axe.run().then(({ passes, violations }) => ({ passed: passes.length, violations }))"
LINE = {"capacity_type": "spot", "instance_type": "g5.xlarge", "seconds": 900.0, "idle_seconds": 30.0, "price": "0.41"}
LINE |= {"cost": "0.10", "idle_cost": "0.01", "on_demand_cost": "0.25", "note": ""}
COST = {"currency": "USD", "book": "example", "cost": "0.10", "idle_cost": "0.01", "on_demand_cost": "0.25"}
COST |= {"saving": "0.15", "saving_percent": "60.0", "unpriced_seconds": 0.0, "lines": [LINE]}
WHY = {"who": "Rank 2 on worker-2", "message": "ValueError: no such sample", "details": "at step 7"}
WHY["traceback"] = "Traceback (most recent call last):\nValueError: no such sample"
LOST = {**STATUS["workers"][0], "name": "worker-9", "state": "lost", "ranks": []}
SHOWN: dict[str, tuple[str, str, Any]] = {
    "live": (TASK, "task", page_of(cost=COST, message="It is not all known.", status=STEERED)),
    "failed": (
        TASK,
        "task",
        page_of(
            live=False,
            status={
                **STATUS,
                "phase": "failed",
                "failure": "rank_failed",
                "workers": [*STATUS["workers"], LOST],
            },
            why=WHY,
        ),
    ),
    "succeeded": (TASK, "task", page_of(live=False, status={**STATUS, "phase": "succeeded"})),
    "suspended": (TASK, "task", page_of(status={**STATUS, "phase": "suspended"})),
    "nothing": (TASK, "task", page_of(status=None, live=False, message="This task does not train.")),
    "dag run": (
        "dag-run?dag_id=digits&run_id=manual",
        "dag-run",
        {
            "tasks": [
                {"task_id": "train", "map_index": -1, "place": "local", "try_number": 1, "name": "digits-train"}
                | {"phase": phase, "world_size": 2, "target_size": 2, "step": 7}
                for phase in ("running", "failed", None)
            ]
        },
    ),
    "runs": (
        "",
        "runs",
        {
            "total": 1,
            "runs": [
                {"name": "digits-train", "place": "local", "phase": "running", "reason": "", "world_size": 2}
                | {"target_size": 3, "step": 70, "started": None, "finished": None, "updated": STATUS["updated"]}
                | {"dag_id": "digits", "run_id": "manual", "task_id": "train", "map_index": -1, "cost": None}
            ],
            "unreachable": [{"place": "cluster", "message": "no route"}],
            "incomplete": True,
            "pools": [POOL],
        },
    ),
}
"""Address, route of the API, and its answer."""
_SPENT = {"runs": 3, "unpriced": 1, "seconds": 7200.0, "trained_seconds": 5400.0, "idle_seconds": 1800.0}
_SPENT |= {"lost_seconds": 36.0, "cost": "1.50", "idle_cost": "0.40", "lost_cost": "0.02"}
COSTS = {"by": "dag", "currency": "USD", "totals": [{"name": "digits", **_SPENT}], "all": {"name": "all", **_SPENT}}


def opened(server: Server, page: Any, shown: str) -> None:
    path, route, answer = SHOWN[shown]
    server.answers[route] = answer
    page.goto(server.url + path)
    page.wait_for_function("() => document.querySelector('h1')")


def with_all_details(server: Server, page: Any, shown: str) -> None:
    """Open the page, and all that it has folded."""
    server.answers["costs"] = COSTS
    opened(server, page, shown)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    if shown == "runs":
        page.get_by_role("region", name="Costs").wait_for()


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in provider/frontend, as make test-browser does")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("shown", SHOWN)
def test_axe_finds_nothing(server: Server, page: Any, shown: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    with_all_details(server, page, shown)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert_accessible(page)
    if shown == "live":
        page.get_by_role("button", name="End the run…").click()
        assert_accessible(page)


def assert_accessible(page: Any) -> None:
    found = page.evaluate(CHECK)
    assert [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]] == []
    assert found["passed"] > 5, "axe has looked at nothing"


@pytest.mark.parametrize("shown", SHOWN)
def test_a_phone_scrolls_only_downwards(server: Server, page: Any, shown: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    with_all_details(server, page, shown)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


FOCUSED = """() => {
    const it = document.activeElement;
    if (it === document.body) return null;
    const named = it.ariaLabel || it.labels?.[0]?.innerText || it.innerText;
    return [named.split("\\n")[0].trim(), getComputedStyle(it).outlineStyle];
}"""


def test_all_that_a_mouse_can_do_the_keyboard_can(server: Server, page: Any) -> None:
    opened(server, page, "live")
    reached: dict[str, str] = {}
    page.keyboard.press("Tab")
    while (focused := page.evaluate(FOCUSED)) is not None:
        reached.setdefault(*focused)
        page.keyboard.press("Tab")
        assert len(reached) < 100
    notices = [f"Send a reclaim notice to {each['name']}" for each in STATUS["workers"] if each["state"] == "training"]
    assert {"Try", "Workers", "Scale", "End the run…", "over time", "Kind", "Text", *notices} <= reached.keys()
    assert "none" not in reached.values(), "where the focus is cannot be seen"


def test_the_keyboard_ends_a_run_after_a_second_thought(server: Server, page: Any) -> None:
    opened(server, page, "live")
    button = page.get_by_role("button", name="End the run…")
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="End this run?").wait_for()
    assert page.evaluate(FOCUSED)[0] == "Keep it"
    page.keyboard.press("Escape")
    assert server.posts == []
    assert page.evaluate(FOCUSED)[0] == "End the run…"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("The run has been asked to end").wait_for()
    assert [path for path, _, _ in server.posts] == ["/elastic-training/api/v1/end"]
