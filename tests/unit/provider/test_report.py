"""A run's report: its page."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from elastic_runtime.launcher.record.series import MAX_POINTS
from elastic_runtime.prices.book import read_prices
from elastic_runtime.run.status import (
    MAX_EVENTS,
    MAX_METRICS,
    Event,
    EventKind,
    Phase,
    Series,
    SizeAsked,
    Status,
    Usage,
    WorkerState,
    WorkerStatus,
    World,
)
from elastic_runtime.run.status_failure import MAX_TRACEBACK, FirstFailure
from elastic_runtime.run.status_figures import GpuFigures, Hardware, HardwareColumn
from elastic_training.cost.bill import bill, plain_bill
from elastic_training.report import MOST_CURVES, MOST_WORKERS, render_report, why
from tests.unit.provider.reported import EMPTY, FAILED, NOON, RUN, WORKER, Page, at


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

    def test_calls_unknown_what_a_script_does_not_tell(self) -> None:
        silent = replace(RUN, step=None, throughput=Series(), lost_seconds={"starting": 1.0})
        text = Page(render_report(silent)).text
        assert "The script tells no step: the time to each world's first step is unknown." in text
        assert "the time for the script's own checkpoints is unknown" in text
        told = Page(render_report(replace(RUN, lost_seconds={"starting": 1.0, "checkpoint": 0.0}))).text
        assert "unknown" not in told
        assert "unknown" not in Page(render_report(EMPTY)).text, "it has not trained yet"

    def test_says_why_a_run_failed(self) -> None:
        assert "failed (rank failed): rank 0 ended with code 1" in Page(render_report(FAILED)).text

    def test_the_rank_that_failed_first_stands_at_the_top(self) -> None:
        lost = Event(at(4), EventKind.RANK_FAILED, "rank worker-1.0.1 ended with code 1", "worker-1", 40)
        later = Event(at(5), EventKind.RANK_FAILED, "rank worker-0.0.1 ended with code 1", "worker-0", 40)
        text = Page(render_report(replace(FAILED, events=(*RUN.events, lost, later)))).text
        assert "Rank worker-1.0.1 ended with code 1 on worker-1" in text
        assert text.index("Rank worker-1.0.1") < text.index("Over time")
        assert "after step 40" in text

    def test_what_it_raised_and_its_traceback_stand_there_as_far_as_they_are_known(self) -> None:
        end = "\nValueError: no <such> sample"
        first = FirstFailure(
            *(1, "worker-1", "worker-1.0.1", 40, 1, at(4), "ValueError: no <such> sample"),
            traceback="Traceback (most recent call last):\n" + "x" * 50_000 + end,
        )
        failed = replace(FAILED, first_failure=first)
        told = why(failed)
        assert told is not None
        assert (told.who, told.message) == ("Rank 1 on worker-1", "ValueError: no <such> sample")
        assert told.details == "at step 40, ended with code 1, 2026-01-02 12:00:04 UTC"
        assert len(told.traceback) == MAX_TRACEBACK
        assert told.traceback.endswith(end)
        text = Page(render_report(failed)).text
        assert text.index(end) < text.index("Over time")

    def test_time_lost_is_told_by_cause(self) -> None:
        text = Page(render_report(replace(RUN, lost_seconds={"resize": 1.0, "waiting_for_capacity": 4.0}))).text
        assert "Time lost" in text
        assert text.index("waiting for capacity") < text.rindex("resize")
        assert "40.0 %" in text
        assert "Time lost" not in Page(render_report(replace(RUN, lost_seconds={"resize": 0.0}))).text

    def test_hardware_is_drawn_by_worker(self) -> None:
        times = (at(1).timestamp(), at(2).timestamp(), at(3).timestamp())
        figures = Hardware(times, {"cpu_percent": (50.0, None, 90.0)})
        gpu = GpuFigures(0, "H100", 71.0, 3 << 30, 80 << 30)
        worker = replace(WORKER, gpus=(gpu,), cpu_percent=88.0, memory_bytes=5 << 20)
        html = render_report(replace(RUN, workers=(worker,), hardware={"worker-0": figures, "nothing": Hardware()}))
        assert html.count('class="figure-line w0"') == 1
        for shown in ("CPU, per cent of one core", "H100 71 % 3 GiB of 80 GiB", "88 %", "5 MiB"):
            assert shown in Page(html).text, shown
        many = {f"worker-{number}": figures for number in range(100)}
        assert "92 more workers are not drawn" in Page(render_report(replace(RUN, hardware=many))).text

    def test_cost_is_told_by_kind_of_machine(self) -> None:
        usage = (Usage("spot", "g4dn.xlarge", 36000.0, 3600.0), Usage("spot", "p9.huge", 9.0))
        text = Page(render_report(RUN, cost=plain_bill(bill(usage, read_prices()), "<the example>"))).text
        assert "<the example>" in text
        assert "g4dn.xlarge spot" in text
        assert "not in the price book" in text

    def test_its_contents_lead_to_what_is_there(self) -> None:
        root = ElementTree.fromstring(render_report(RUN))
        ids = {each.get("id") for each in root.iter()}
        links = [(each.get("href") or "").removeprefix("#") for each in root.iter("a")]
        assert links == ["time", "steps", "events", "workers"]
        assert set(links) <= ids

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
        times = tuple(NOON.timestamp() + number for number in range(5000))
        hardware = Hardware(times, dict.fromkeys(HardwareColumn, tuple(float(number % 7) for number in range(5000))))
        gpus = (GpuFigures(0, hostile, 1e17, 1 << 60, 1 << 60),) * 1000
        worker = WorkerStatus(hostile, hostile, WorkerState.TRAINING, NOON, 1, tuple(range(1000)), (), 1.0)
        status = Status(
            *(hostile, hostile, Phase.FAILED, hostile, NOON),
            metrics={f"{number}{hostile}": 1.0 for number in range(MAX_METRICS)},
            series={f"{number}{hostile}": series for number in range(MAX_METRICS)},
            workers=(replace(worker, capacity_type=hostile, instance_type=hostile, gpus=gpus),) * 1000,
            events=(Event(NOON, EventKind.LOST, hostile),) * 10 * MAX_EVENTS,
            history=tuple(World(at(number), number, number, 10**9 + number) for number in range(10_000)),
            asked=(SizeAsked(NOON, 10**30),) * 10_000,
            lost_seconds={f"{number}{hostile}": 1e300 for number in range(1000)},
            hardware={f"{number}{hostile}": hardware for number in range(1000)},
        )
        assert len(render_report(status).encode()) < 1 << 20
