"""A run's report: its charts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from elastic_runtime.run.status import (
    Event,
    EventKind,
    Series,
)
from elastic_training.report.chart import log_ticks, nice_ticks, step_chart, time_chart
from tests.unit.provider.reported import EMPTY, RUN, WORKER, at, curves


def path(points: list[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)


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
