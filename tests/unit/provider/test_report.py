"""A run's report: its charts, and its page."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_runtime.series import MAX_POINTS, noted
from elastic_runtime.status import (
    MAX_EVENTS,
    MAX_METRICS,
    Checkpoint,
    Event,
    EventKind,
    FailureKind,
    Phase,
    Series,
    SizeAsked,
    Status,
    WorkerState,
    WorkerStatus,
    World,
)
from elastic_training.report import MOST_CURVES, MOST_WORKERS, render_report
from elastic_training.report.chart import log_ticks, nice_ticks, step_chart, time_chart

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def curves(**values: list[float]) -> dict[str, Series]:
    """A report a second, each of ten steps."""
    series: dict[str, Series] = {}
    for name, column in values.items():
        for number, value in enumerate(column, start=1):
            series |= noted({name: series.get(name, Series())}, {name: value}, 10 * number, at(number))
    return series


WORKER = WorkerStatus("worker-0", "node-a", WorkerState.TRAINING, at(1), 1, (0, 1), (7,), 20.0, instance_type="p4d")
RUN = Status(
    "nightly-train-1",
    "uid-1",
    Phase.SUCCEEDED,
    "all ranks ended with code 0",
    at(10),
    started=at(1),
    finished=at(10),
    target_size=2,
    step=90,
    metrics={"loss": 0.25},
    series=curves(loss=[2.0 / number for number in range(1, 10)], accuracy=[0.5] * 9),
    throughput=curves(throughput=[10.0] * 9)["throughput"],
    workers=(WORKER,),
    events=(
        Event(at(1), EventKind.STARTED, "2 <ranks> train", world_size=2),
        Event(at(3), EventKind.CHECKPOINT, "durable checkpoint of step 30", step=30),
        Event(at(5), EventKind.NOTICE, "worker-1 will be taken", "worker-1", 50),
        Event(at(10), EventKind.FINISHED, "succeeded"),
    ),
    checkpoint=Checkpoint("file:///there", 90, at(10)),
    history=(World(at(1), 2, 1), World(at(6), 1, 2, 50), World(at(8), 2, 3, 70)),
    asked=(SizeAsked(at(0), 2), SizeAsked(at(4), 3), SizeAsked(at(7), 2)),
    worker_seconds={"worker-0": 700.0},
)
EMPTY = Status("run", "uid", Phase.PENDING, "the launcher is starting", NOON)
FAILED = replace(RUN, phase=Phase.FAILED, failure=FailureKind.RANK_FAILED, reason="rank 0 ended with code 1")


class TestChart:
    def test_world_size_stands_against_what_was_asked_for(self) -> None:
        chart = time_chart(RUN)
        left, width = chart.world.left, chart.world.width
        none, one, two, three = (tick.at for tick in chart.world_ticks)
        assert [tick.label for tick in chart.world_ticks] == ["0", "1", "2", "3"]
        corners = [(0, none), (1, none), (1, two), (6, two), (6, one), (8, one), (8, two), (10, two), (10, two)]
        assert chart.world_line == path([(left + width * second / 10, y) for second, y in corners])
        asked = [(0, two), (4, two), (4, three), (7, three), (7, two), (10, two), (10, two)]
        assert chart.asked_line == path([(left + width * second / 10, y) for second, y in asked])

    def test_workers_of_several_slots_are_asked_for_as_so_many_ranks(self) -> None:
        several = replace(RUN, workers=(replace(WORKER, slots=4),))
        assert time_chart(several).world_ticks[-1].label in ("10", "12")

    def test_events_are_marked_where_they_happened(self) -> None:
        chart = time_chart(RUN)
        assert [mark.category for mark in chart.marks] == ["size", "notice", "pause"]
        assert [label.label for label in chart.labels] == ["1", "2", "3"]
        assert [label.at for label in chart.labels] == [mark.at for mark in chart.marks]
        assert len(chart.checkpoints) == 1

    def test_crowded_events_share_a_label(self) -> None:
        events = [Event(at(second), EventKind.LOST, "lost") for second in (1, 1, 1.1, 5, 9.9, 10, 10)]
        chart = time_chart(replace(RUN, events=tuple(events)))
        assert [label.label for label in chart.labels] == ["1–3", "4", "5–7"]
        assert all(later.at - sooner.at >= 40 for sooner, later in pairwise(chart.labels))

    @pytest.mark.parametrize(("seconds", "unit"), [(10, "s"), (3000, "min"), (80_000, "h"), (10**6, "d")])
    def test_time_has_the_unit_that_suits_it(self, seconds: int, unit: str) -> None:
        chart = time_chart(replace(RUN, finished=at(seconds)))
        assert chart.unit == unit
        assert 3 <= len(chart.time_ticks) <= 11

    def test_the_loss_is_shown_over_time_or_else_the_first_metric(self) -> None:
        both = time_chart(replace(RUN, series=curves(accuracy=[0.5], loss=[2.0, 1.0])))
        assert both.metric is not None
        assert both.metric.name == "loss"
        other = time_chart(replace(RUN, series=curves(accuracy=[0.5])))
        assert other.metric is not None
        assert other.metric.name == "accuracy"
        assert time_chart(EMPTY).metric is None

    def test_worlds_that_began_are_dotted_over_the_steps(self) -> None:
        chart = step_chart("loss", RUN.series["loss"], RUN)
        assert chart is not None
        assert len(chart.worlds) == 2
        assert [tick.label for tick in chart.x_ticks] == ["20", "40", "60", "80"]
        assert chart.newest == "0.2222"

    @pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [1e-300, 1e300, 2.0], [-5.0, 5.0], [1e-9, 1e9]])
    def test_whatever_values_stay_in_the_drawing(self, values: list[float]) -> None:
        chart = step_chart("loss", curves(loss=values)["loss"], RUN)
        assert chart is not None
        for point in chart.path[1:].split(" L"):
            x, y = map(float, point.split(","))
            assert chart.area.left <= x <= chart.area.right
            assert chart.area.top <= y <= chart.area.bottom

    def test_nothing_is_not_drawn(self) -> None:
        assert step_chart("loss", Series(), RUN) is None
        assert step_chart("loss", Series(1, (1,), (1.0,), (float("nan"),)), RUN) is None

    def test_ticks_are_round_numbers(self) -> None:
        assert nice_ticks(0.0, 29.0, 8) == [0, 5, 10, 15, 20, 25]
        assert nice_ticks(-0.3, 0.3, 5) == [-0.2, 0, 0.2]
        assert log_ticks(0.01, 2.04, 8) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]
        assert log_ticks(1e-30, 1e30, 4) == [1e-16, 1, 1e16]


def path(points: list[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)


class Page(HTMLParser):
    """Notes what a page would fetch, its tags, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.text += data


class TestPage:
    def test_fetches_nothing_and_shows_the_run(self) -> None:
        html = render_report(RUN, {"samples lost": "0"})
        page = Page(html)
        assert page.fetched == []
        assert page.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "img"})
        assert "url(" not in html
        assert "@import" not in html
        for shown in ("nightly-train-1", "samples lost", "2 → 1 → 2", "0:11:40", "step 90", "loss", "steps a second"):
            assert shown in page.text, shown
        assert "2 <ranks> train" in page.text, "text of events is escaped"
        assert "worker-0" in page.text

    def test_says_why_a_run_failed(self) -> None:
        assert "failed (rank failed): rank 0 ended with code 1" in Page(render_report(FAILED)).text

    def test_of_a_run_without_metrics_has_no_curves(self) -> None:
        text = Page(render_report(replace(RUN, series={}, throughput=Series(), metrics={}))).text
        assert "Over time" in text
        assert "Over steps" not in text

    def test_of_a_run_that_has_not_begun(self) -> None:
        text = Page(render_report(EMPTY)).text
        assert "It has not trained" in text
        assert "workers asked for" in text
        assert "Workers" not in text

    def test_leaves_the_rest_of_many_away(self) -> None:
        workers = tuple(replace(WORKER, name=f"worker-{number}", state=WorkerState.LOST) for number in range(1000))
        metrics = {f"metric {number}": Series(1, (1,), (1.0,), (1.0,)) for number in range(50)}
        text = Page(render_report(replace(RUN, workers=(*workers, WORKER), series=metrics))).text
        assert text.count("worker-0") == 2, "one of them is here, and so comes first"
        assert f"{1001 - MOST_WORKERS} more are not listed" in text
        assert f"{51 - MOST_CURVES} more are not drawn" in text
        assert "steps a second" in text

    def test_is_bounded(self) -> None:
        hostile = '"' * 5000
        series = Series(1, tuple(range(10**9, 10**9 + MAX_POINTS)), (1e9,) * MAX_POINTS, (1.23456e-30,) * MAX_POINTS)
        worker = WorkerStatus(hostile, hostile, WorkerState.TRAINING, NOON, 1, tuple(range(1000)), (), 1.0)
        status = Status(
            *(hostile, hostile, Phase.FAILED, hostile, NOON),
            metrics={f"{number}{hostile}": 1.0 for number in range(MAX_METRICS)},
            series={f"{number}{hostile}": series for number in range(MAX_METRICS)},
            workers=(replace(worker, capacity_type=hostile, instance_type=hostile),) * 1000,
            events=(Event(NOON, EventKind.LOST, hostile),) * 10 * MAX_EVENTS,
            history=tuple(World(at(number), number, number, 10**9 + number) for number in range(10_000)),
            asked=(SizeAsked(NOON, 10**30),) * 10_000,
        )
        assert len(render_report(status).encode()) < 1 << 20


TEXTS = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["</script><b>&", "\x00\x1b[31m", "\ud800", "\"'><svg>"]
)
TIMES = st.datetimes(timezones=st.just(UTC))
COUNTS = st.integers(0, 10**12)
SERIES = st.builds(
    Series,
    stride=st.integers(1, 100),
    steps=st.lists(st.integers(), max_size=5).map(tuple),
    times=st.lists(st.floats(), max_size=5).map(tuple),
    values=st.lists(st.floats(), max_size=5).map(tuple),
)


def some(of: Any, /, **fields: Any) -> Any:
    return st.lists(st.builds(of, **fields), max_size=3).map(tuple)


STATUSES = st.builds(
    Status,
    *(TEXTS, TEXTS, st.sampled_from(Phase), TEXTS, TIMES),
    started=st.none() | TIMES,
    finished=st.none() | TIMES,
    failure=st.none() | st.sampled_from(FailureKind),
    step=st.none() | st.integers(),
    metrics=st.dictionaries(TEXTS, st.floats(), max_size=3),
    series=st.dictionaries(TEXTS, SERIES, max_size=3),
    throughput=SERIES,
    workers=some(
        WorkerStatus,
        name=TEXTS,
        node=TEXTS,
        state=st.sampled_from(WorkerState),
        since=TIMES,
        slots=COUNTS,
        seconds=st.floats(),
        instance_type=st.none() | TEXTS,
    ),
    events=some(Event, time=TIMES, kind=st.sampled_from(EventKind), message=TEXTS, step=st.none() | st.integers()),
    checkpoint=st.none() | st.builds(Checkpoint, uri=TEXTS, step=COUNTS, time=TIMES),
    history=some(World, time=TIMES, size=COUNTS, generation=COUNTS, step=st.none() | st.integers()),
    asked=some(SizeAsked, time=TIMES, workers=st.integers()),
    worker_seconds=st.dictionaries(TEXTS, st.floats(), max_size=3),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(STATUSES, st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_every_status_makes_a_well_formed_page(status: Status, figures: dict[str, str]) -> None:
    html = render_report(status, figures)
    html.encode()
    root = ElementTree.fromstring(html)
    assert {each.tag for each in root.iter()} <= {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "code", "div", "b", "span"),
        *("section", "svg", "line", "text", "path", "circle", "rect", "table", "tr", "th", "td"),
    }
    assert "nan" not in "".join(each.get("d", "") for each in root.iter("path"))


@given(TEXTS)
def test_hostile_texts_stay_texts(text: str) -> None:
    hostile = f"<b>{text}</b>"
    shown = Page(render_report(replace(EMPTY, reason=hostile))).tags
    assert shown == Page(render_report(EMPTY)).tags
