"""A run's report: its page."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from elastic_runtime.launcher.record.series import MAX_POINTS
from elastic_runtime.prices.book import read_prices
from elastic_runtime.run.deadline import DeadlineStatus
from elastic_runtime.run.status import (
    MAX_EVENTS,
    MAX_METRICS,
    Event,
    EventKind,
    Outputs,
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
from elastic_runtime.run.status_progress import Progress
from elastic_training.cost.bill import bill, plain_bill
from elastic_training.report import MOST_BYTES, content_policy, render_report
from elastic_training.report.contents import MOST_CURVES, MOST_MACHINES, MOST_WORKERS, SIZES, contents, why
from tests.report_data import data_of
from tests.unit.provider.reported import EMPTY, FAILED, NOON, RUN, WORKER, at


class Page(HTMLParser):
    """Notes what a page would fetch, and what runs in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str | None] = []
        self.scripts: list[str | None] = []
        self.policy: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [given[name] for name in ("src", "href", "srcset") if name in given]
        if tag == "script":
            self.scripts.append(given["type"])
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]


class TestPage:
    def test_fetches_nothing_and_runs_the_page_alone(self) -> None:
        html = render_report(RUN)
        page = Page(html)
        assert page.fetched == ["data:,"]
        assert page.scripts == ["application/json", "module"]
        assert "@import" not in html
        assert page.policy == content_policy()
        assert "default-src 'none'" in content_policy()
        assert "unsafe" not in content_policy()
        assert "http" not in content_policy()

    def test_its_bundle_can_stand_in_a_page(self) -> None:
        """A script or a style ends at its end tag, wherever that is; a comment changes what an end is."""
        static = files("elastic_training") / "static"
        for name, end in (("page.js", "</script"), ("page.css", "</style")):
            text = (static / name).read_text(encoding="utf-8")
            assert end not in text.lower()
            assert "<!--" not in text
            assert "\r" not in text, "a browser turns it into something else, and the hash is wrong"

    def test_without_javascript_says_how_the_run_has_ended(self) -> None:
        html = render_report(FAILED)
        assert "<noscript><h1>nightly-train-1: failed</h1><p>rank 0 ended with code 1</p>" in html


class TestContents:
    def test_show_the_run(self) -> None:
        data = data_of(render_report(RUN, {"samples lost": "0"}))
        status, figures = data["status"], data["figures"]
        assert (status["run"], status["phase"], status["step"]) == ("nightly-train-1", "succeeded", 90)
        assert next(iter(figures.items())) == ("samples lost", "0"), "the caller's own stand first"
        assert figures["world sizes"] == "2 → 1 → 2"
        assert figures["worker time"] == "0:11:40"
        assert figures["newest checkpoint"] == "step 90"
        assert [each["size"] for each in status["history"]] == [2, 1, 2]
        assert [each["workers"] for each in status["asked"]] == [2, 3, 2]
        assert status["series"]["loss"]["values"] == list(RUN.series["loss"].values)
        assert status["throughput"]["steps"] == list(RUN.throughput.steps)
        assert status["events"][0]["message"] == "2 <ranks> train"
        assert status["workers"][0]["name"] == "worker-0"
        assert data["left_out"] == []

    def test_have_nothing_that_is_not_shown(self) -> None:
        """People hand a report on: it has no word of the run that they do not see."""
        told = replace(RUN, returned='"returned-1"', profiles=("s3://profile-1",))
        html = render_report(replace(told, outputs=Outputs("s3://outputs-1", 1, 1)))
        for hidden in ("returned-1", "profile-1", "outputs-1", "file:///there"):
            assert hidden not in html

    def test_tell_how_far_a_run_came_if_its_script_says_how_many_steps_it_has(self) -> None:
        assert "progress" not in data_of(render_report(RUN))["figures"]
        figures = data_of(render_report(replace(RUN, progress=Progress(120, 75.0))))["figures"]
        assert figures["progress"] == "75 % of 120 steps"

    def test_a_deadline_and_a_budget(self) -> None:
        figures = data_of(render_report(replace(RUN, deadline=DeadlineStatus(budget=40.0, spent=12.4))))["figures"]
        assert figures["deadline"] == "12.40 $ spent, of 40.00 $"

    def test_call_unknown_what_a_script_does_not_tell(self) -> None:
        assert data_of(render_report(replace(RUN, step=None)))["figures"]["newest step"] == "unknown"
        assert data_of(render_report(EMPTY))["figures"]["newest step"] == "–", "it has not trained yet"

    def test_tell_where_the_timeline_is(self) -> None:
        uri = "s3://bucket/run/traces/timeline-1.json.gz"
        assert data_of(render_report(replace(RUN, timeline=uri)))["status"]["timeline"] == uri
        assert len(data_of(render_report(replace(RUN, timeline=uri * 100)))["status"]["timeline"]) == 500

    def test_say_why_a_run_failed(self) -> None:
        data = data_of(render_report(FAILED))
        assert (data["status"]["failure"], data["status"]["reason"]) == ("rank_failed", "rank 0 ended with code 1")
        assert data["why"] is None, "nothing is known beyond the reason"

    def test_name_the_rank_that_failed_first(self) -> None:
        lost = Event(at(4), EventKind.RANK_FAILED, "rank worker-1.0.1 ended with code 1", "worker-1", 40)
        later = Event(at(5), EventKind.RANK_FAILED, "rank worker-0.0.1 ended with code 1", "worker-0", 40)
        told = data_of(render_report(replace(FAILED, events=(*RUN.events, lost, later))))["why"]
        assert told["message"] == "Rank worker-1.0.1 ended with code 1 on worker-1"
        assert told["details"] == "after step 40, 2026-01-02 12:00:04 UTC"

    def test_tell_what_it_raised_and_its_traceback_as_far_as_they_are_known(self) -> None:
        end = "\nValueError: no <such> sample"
        first = FirstFailure(
            *(1, "worker-1", "worker-1.0.1", 40, 1, at(4), "ValueError: no <such> sample"),
            traceback="Traceback (most recent call last):\n" + "x" * 50_000 + end,
        )
        failed = replace(FAILED, first_failure=first)
        told = why(failed)
        assert told is not None
        assert (told["who"], told["message"]) == ("Rank 1 on worker-1", "ValueError: no <such> sample")
        assert told["details"] == "at step 40, ended with code 1, 2026-01-02 12:00:04 UTC"
        assert len(told["traceback"]) == MAX_TRACEBACK
        assert told["traceback"].endswith(end)
        assert data_of(render_report(failed))["why"]["traceback"].endswith(end)

    def test_time_lost_by_cause(self) -> None:
        lost = {"resize": 1.0, "waiting_for_capacity": 4.0}
        assert data_of(render_report(replace(RUN, lost_seconds=lost)))["status"]["lost_seconds"] == lost

    def test_hardware_by_worker(self) -> None:
        times = (at(1).timestamp(), at(2).timestamp(), at(3).timestamp())
        figures = Hardware(times, {"cpu_percent": (50.0, None, 90.0)})
        gpu = GpuFigures(0, "H100", 71.0, 3 << 30, 80 << 30)
        used = {"cpu_percent": 88.0, "memory_bytes": 5 << 20, "memory_limit_bytes": 8 << 30}
        worker = replace(WORKER, gpus=(gpu,), step_seconds=0.82, step_skew=1.9, **used)
        run = replace(RUN, workers=(worker,), hardware={"worker-0": figures, "nothing": Hardware()})
        status = data_of(render_report(run))["status"]
        assert status["hardware"] == {
            "worker-0": {"times": list(times), "columns": {"cpu_percent": [50.0, None, 90.0]}}
        }
        assert status["workers"][0]["gpus"][0] == {
            "index": 0,
            "name": "H100",
            "percent": 71.0,
            "memory_bytes": 3 << 30,
            "memory_total_bytes": 80 << 30,
        }
        assert {name: status["workers"][0][name] for name in used} == used
        assert (status["workers"][0]["step_seconds"], status["workers"][0]["step_skew"]) == (0.82, 1.9)
        many = {f"worker-{number}": figures for number in range(100)}
        data = data_of(render_report(replace(RUN, hardware=many)))
        assert len(data["status"]["hardware"]) == MOST_MACHINES
        assert "worker-0" in data["status"]["hardware"], "it is here, and so comes first"
        assert data["left_out"] == ["The hardware of 68 of 100 workers is left out."]

    def test_cost_by_kind_of_machine(self) -> None:
        usage = (Usage("spot", "g4dn.xlarge", 36000.0, 3600.0), Usage("spot", "p9.huge", 9.0))
        cost = data_of(render_report(RUN, cost=plain_bill(bill(usage, read_prices()), "<the example>")))["cost"]
        assert cost["book"] == "<the example>"
        machines = {(line["instance_type"], line["capacity_type"]) for line in cost["lines"]}
        assert machines == {("g4dn.xlarge", "spot"), ("p9.huge", "spot")}
        assert any("not in the price book" in line["note"] for line in cost["lines"])

    def test_of_a_run_that_has_not_begun(self) -> None:
        data = data_of(render_report(EMPTY))
        assert data["status"]["started"] is None
        assert data["figures"]["workers asked for"] == "0"
        assert data["status"]["workers"] == []

    def test_leave_the_rest_of_many_away(self) -> None:
        workers = tuple(replace(WORKER, name=f"worker-{number}", state=WorkerState.LOST) for number in range(1000))
        metrics = {f"metric {number}": Series(1, (1,), (NOON.timestamp(),), (1.0,)) for number in range(50)}
        run = replace(RUN, workers=(*workers, WORKER), series={**metrics, "loss": RUN.series["loss"]})
        data = data_of(render_report(run))
        assert data["status"]["workers"][0]["state"] == "training", "one of them is here, and so comes first"
        assert len(data["status"]["workers"]) == MOST_WORKERS
        assert len(data["status"]["series"]) == MOST_CURVES
        assert "loss" in data["status"]["series"]
        assert data["left_out"] == [
            f"{51 - MOST_CURVES} of 51 metrics are left out.",
            f"{1001 - MOST_WORKERS} of 1001 workers are not listed.",
        ]

    def test_values_that_no_axis_has_room_for_are_not_drawn(self) -> None:
        values = (float("nan"), float("inf"), 1e300, 1e-300, 2.0)
        times = (NOON.timestamp(),) * 5
        run = replace(
            RUN, series={"loss": Series(1, (1, 2, 3, 4, 5), times, values), "odd": Series(1, (1,), (1e300,), (1.0,))}
        )
        drawn = data_of(render_report(run))["status"]["series"]
        assert drawn == {"loss": {"steps": [4, 5], "times": list(times[:2]), "values": [0.0, 2.0]}}

    def test_curves_are_thinned_until_the_page_is_small_enough(self) -> None:
        times = tuple(NOON.timestamp() + number / 7 for number in range(1000))
        column = tuple(number / 7 for number in range(1000))
        hardware = Hardware(times, dict.fromkeys(HardwareColumn, column))
        run = replace(RUN, hardware={f"worker-{number}": hardware for number in range(20)})
        html = render_report(run)
        assert 0.3 * MOST_BYTES < len(html.encode()) < MOST_BYTES
        data = data_of(html)
        [said] = data["left_out"]
        most = int(said.removeprefix("Curves are thinned to at most ").removesuffix(" points each."))
        assert most in [size.points for size in SIZES[1:-1]]
        for each in data["status"]["hardware"].values():
            assert most / 2 < len(each["times"]) <= most
            assert each["times"][-1] == times[-1], "the newest stays"

    @pytest.mark.parametrize(
        ("character", "says"), [('"', "Curves are thinned"), ("\U0001f600", "This run's curves are left out")]
    )
    def test_are_bounded(self, character: str, says: str) -> None:
        hostile = character * 5000
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
        html = render_report(status)
        assert len(html.encode()) < MOST_BYTES
        assert data_of(html)["left_out"][0].startswith(says)

    def test_even_the_smallest_size_has_what_matters(self) -> None:
        data = contents(RUN, None, None, SIZES[-1])
        assert data["status"]["series"] == data["status"]["hardware"] == {}
        assert [each["kind"] for each in data["status"]["events"]] == [each.kind for each in RUN.events]
