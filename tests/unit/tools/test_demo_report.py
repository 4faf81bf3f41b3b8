"""What the demo makes of a run: its verdict, its charts and its page."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from demo_kit.chart import log_ticks, nice_ticks, phases_chart, training_chart
from demo_kit.look_back import LookBack, Outcome, Phase, contains_in_order, look_back, problems, task_phases
from demo_kit.report import render
from digits.ledger import Entry

GOOD = Outcome((2, 3, 2, 3), steps=40, samples_seen=80, samples_lost=0, samples_repeated=0, accuracy=0.98, phases=())
START = 1_800_000_000.0
EVENTS = [
    {"time": "2027-01-15T08:00:05.000Z", "kind": "scaled", "message": "3 <ranks> train", "step": 5, "world_size": 3},
    {"time": "2027-01-15T08:00:05.100Z", "kind": "notice", "message": "worker-1", "step": None, "world_size": None},
    {"time": "2027-01-15T08:00:07.000Z", "kind": "checkpoint", "message": "step 7", "step": 7, "world_size": None},
]
RESULT: dict[str, Any] = {
    "run": "digits-elastic-train-1",
    "started": "2027-01-15T08:00:00.000Z",
    "finished": "2027-01-15T08:00:10.000Z",
    "worker_seconds_total": 25.0,
    "events": EVENTS,
}


def looked_back(accuracy: float | None = 0.98) -> LookBack:
    sizes = {1: 2, 2: 2, 3: 3, 4: 2}
    entries = [
        Entry(step, 0, rank, size, (10 * step + rank,), 2.0 / step, START + 2 * step)
        for step, size in sizes.items()
        for rank in range(size)
    ]
    samples = [entry.indices[0] for entry in entries]
    renumbered = [replace(entry, indices=(samples.index(entry.indices[0]),)) for entry in entries]
    phases = [Phase("airflow_start", START - 20, 18.0), Phase("train", START - 1, 12.0)]
    return look_back(renumbered, len(samples), 1, RESULT, accuracy, phases)


def test_sizes_and_counts_come_from_the_ledgers() -> None:
    outcome = looked_back().outcome
    assert outcome.world_sizes == (2, 3, 2)
    assert (outcome.steps, outcome.samples_seen, outcome.samples_lost, outcome.samples_repeated) == (4, 9, 0, 0)
    assert problems(outcome) == []


def test_the_json_has_exactly_the_promised_keys() -> None:
    assert looked_back().outcome.plain() == {
        "world_sizes": [2, 3, 2],
        "steps": 4,
        "samples_seen": 9,
        "samples_lost": 0,
        "samples_repeated": 0,
        "accuracy": 0.98,
        "phases": {"airflow_start": 18.0, "train": 12.0},
    }


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"world_sizes": (2, 3)}, "do not contain"),
        ({"world_sizes": (3, 2, 2)}, "do not contain"),
        ({"accuracy": 0.96}, "accuracy 0.96"),
        ({"accuracy": None}, "accuracy None"),
        ({"samples_lost": 1}, "1 samples were lost"),
        ({"samples_repeated": 2}, "2 samples were trained on twice"),
    ],
)
def test_whatever_falls_short_is_named(change: dict[str, Any], complaint: str) -> None:
    assert problems(GOOD) == []
    (problem,) = problems(replace(GOOD, **change))
    assert complaint in problem


@pytest.mark.parametrize(
    ("sizes", "contained"), [((2, 3, 2), True), ((2, 1, 3, 1, 2), True), ((3, 2), False), ((), False)]
)
def test_order_counts(sizes: tuple[int, ...], contained: bool) -> None:
    assert contains_in_order(sizes, (2, 3, 2)) is contained


def test_tasks_become_phases_in_the_order_of_their_starts() -> None:
    def task(name: str, start: str | None, end: str | None, state: str = "success") -> dict[str, Any]:
        return {"task_id": name, "start_date": start, "end_date": end, "state": state}

    tasks = [
        task("train", "2027-01-15T08:00:05Z", "2027-01-15T08:00:35.5Z"),
        task("prepare", "2027-01-15T08:00:00Z", "2027-01-15T08:00:04Z"),
        task("reclaim", "2027-01-15T08:00:09Z", "2027-01-15T08:00:09Z", "skipped"),
        task("evaluate", None, None),
    ]
    assert [(phase.name, phase.seconds) for phase in task_phases(tasks)] == [("prepare", 4.0), ("train", 30.5)]


def test_events_are_numbered_where_they_happened_and_their_numbers_do_not_overlap() -> None:
    chart = training_chart(looked_back().losses, EVENTS)
    first, second = chart.marks
    assert [first.number, second.number] == [1, 2]
    assert second.label_at - first.label_at >= 20
    assert first.at < second.at < first.at + 20
    assert len(chart.checkpoints) == 1


def test_crowded_events_at_the_end_stay_inside_the_drawing() -> None:
    late = [{**EVENTS[0], "time": "2027-01-15T08:00:08.000Z"}] * 5
    chart = training_chart(looked_back().losses, late)
    assert max(mark.label_at for mark in chart.marks) <= chart.loss_area.right


def test_a_single_step_can_be_drawn() -> None:
    look = looked_back()
    assert training_chart(look.losses[:1], []).loss_path.startswith("M")


def test_bars_lie_inside_their_area() -> None:
    chart = phases_chart(looked_back().outcome.phases)
    assert all(chart.area.left <= bar.left and bar.left + bar.width <= chart.area.right + 0.2 for bar in chart.bars)


def test_ticks_are_round_numbers() -> None:
    assert nice_ticks(29.0, 8) == [0, 5, 10, 15, 20, 25]
    assert log_ticks(-2.0, 0.31) == pytest.approx([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])


class Page(HTMLParser):
    """Notes what a page would fetch, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag in ("script", "link", "iframe"):
            self.fetched.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_fetches_nothing_and_shows_the_figures_and_the_events() -> None:
    html = render(looked_back())
    page = Page()
    page.feed(html)
    assert page.fetched == []
    assert "2 → 3 → 2" in page.text
    assert "98.0 %" in page.text
    assert "3 <ranks> train" in page.text, "text of events is escaped"
    assert "Not as promised" not in page.text


def test_the_page_says_in_what_the_run_fell_short() -> None:
    assert "Not as promised: accuracy 0.5 is less than 0.97" in render(looked_back(accuracy=0.5))
