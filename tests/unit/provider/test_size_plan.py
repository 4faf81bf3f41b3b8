"""A size plan, as users write it; its times checked against pendulum's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.decision.sizing import planned
from elastic_runtime.run.spec import PlanWindow, RunSpec
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import SizePlan, SizeWindow, Workers

NIGHT = SizeWindow(workers=8, start="22:00", end="06:00")


def plan(*windows: Any, **more: Any) -> SizePlan:
    return SizePlan(**({"windows": windows, "otherwise": 2, "timezone": "Asia/Shanghai"} | more))


def operator(**more: Any) -> ElasticHorovodOperator:
    settings: dict[str, Any] = {"command": ["python", "train.py"], "workers": Workers(1, 2, 8)}
    return ElasticHorovodOperator(task_id="train", **(settings | {"size_plan": plan(NIGHT)} | more))


def test_it_reaches_the_launcher() -> None:
    spec = from_json(RunSpec, to_json(operator().spec("run")))
    assert spec.size_plan is not None
    assert spec.size_plan.windows == (PlanWindow(8, "22:00", "06:00"),)
    assert (spec.size_plan.otherwise, spec.size_plan.timezone) == (2, "Asia/Shanghai")
    assert operator(size_plan=None).spec("run").size_plan is None


def test_one_without_a_plan_is_as_before() -> None:
    assert operator(size_plan=None).spec("run").size_plan is None


@pytest.mark.parametrize(
    ("days", "numbers"),
    [
        ("mon-fri", (1, 2, 3, 4, 5)),
        ("fri-mon", (1, 5, 6, 7)),
        ("sun", (7,)),
        (["sat", "sun"], (6, 7)),
        ("mon-mon", (1,)),
    ],
)
def test_days(days: Any, numbers: tuple[int, ...]) -> None:
    (window,) = SizeWindow(workers=8, start="22:00", end="06:00", days=days).spec()
    assert window.days == numbers


def test_a_cron_is_times_of_day_and_days_of_the_week() -> None:
    windows = SizeWindow(workers=8, cron="30 8,20 * * 1-5", lasting=timedelta(hours=10)).spec()
    week = (1, 2, 3, 4, 5)
    assert windows == [PlanWindow(8, "08:30", "18:30", week), PlanWindow(8, "20:30", "06:30", week)]
    (sundays,) = SizeWindow(workers=8, cron="0 0 * * 0", lasting=timedelta(hours=1)).spec()
    assert sundays.days == (7,)
    assert len(SizeWindow(workers=8, cron="0 * * * *", lasting=timedelta(minutes=5)).spec()) == 24


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"start": "22:00"},
        {"start": "22:00", "end": "26:00"},
        {"start": "22:00", "end": "06:00", "lasting": timedelta(hours=1)},
        {"start": "22:00", "end": "06:00", "days": "monday"},
        {"start": "22:00", "end": "06:00", "days": []},
        {"start": "22:00", "end": "06:00", "days": 3},
        {"cron": "0 22 * * *"},
        {"cron": "0 22 * * *", "lasting": timedelta(hours=24)},
        {"cron": "0 22 * * *", "lasting": timedelta(seconds=90)},
        {"cron": "0 22 * * *", "lasting": timedelta(hours=1), "start": "22:00"},
        {"cron": "0 22 1 * *", "lasting": timedelta(hours=1)},
        {"cron": "0 22 * 6 *", "lasting": timedelta(hours=1)},
        {"cron": "0 22 * * 5#2", "lasting": timedelta(hours=1)},
        {"cron": "0 22 * * * 30", "lasting": timedelta(hours=1)},
        {"cron": "every night", "lasting": timedelta(hours=1)},
        {"cron": "", "lasting": timedelta(hours=1)},
    ],
)
def test_windows_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="size_plan"):
        SizeWindow(workers=8, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"windows": []},
        {"windows": "22:00"},
        {"windows": [8]},
        {"otherwise": 0},
        {"timezone": "Mars/Olympus"},
        {"timezone": "../../etc/passwd"},
        {"timezone": None},
    ],
)
def test_plans_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="size_plan"):
        plan(**({"windows": [NIGHT]} | settings))


def test_sizes_are_within_the_trainings_bounds() -> None:
    with pytest.raises(InvalidSettings, match="8 workers are outside"):
        operator(workers=Workers(1, 2, 4))
    later = operator(workers=Workers(1, 2, "{{ params.max }}"))
    later.workers = Workers(1, 2, 4)
    with pytest.raises(InvalidSettings, match="8 workers are outside"):
        later.spec("run")


def test_templates_are_checked_when_they_are_rendered() -> None:
    written = plan(SizeWindow(workers="{{ n }}", start="{{ s }}", end="06:00"), timezone="{{ z }}")
    operator(size_plan=written)
    values = {"{{ n }}": "3", "{{ s }}": "22:00", "{{ z }}": "UTC"}
    spec = written.rendered(lambda text: values.get(text, text)).spec()
    assert (spec.windows, spec.timezone) == ((PlanWindow(3, "22:00", "06:00"),), "UTC")
    with pytest.raises(InvalidSettings, match="time of day"):
        written.rendered(lambda text: {**values, "{{ s }}": "late"}.get(text, text)).spec()


CHANGES = {
    "Europe/Paris": [(2026, 3, 29), (2026, 10, 25)],
    "America/New_York": [(2026, 3, 8), (2026, 11, 1)],
    "Australia/Lord_Howe": [(2026, 4, 5), (2026, 10, 4)],  # By half an hour.
}
"""Days on which clocks are put forward or back."""


@given(
    st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days]),
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(1, 23 * 60),
    st.integers(-1, 1),
)
def test_begins_and_ends_as_pendulum_has_it(
    change: tuple[str, tuple[int, int, int]], hour: int, minute: int, lasting: int, offset: int
) -> None:
    zone, (year, month, date) = change
    over = (60 * hour + minute + lasting) % (24 * 60)
    window = SizeWindow(workers=8, start=f"{hour:02}:{minute:02}", end=f"{over // 60:02}:{over % 60:02}")
    day = pendulum.date(year, month, date).add(days=offset)
    begin = moment(zone, day, 60 * hour + minute)
    end = moment(zone, day.add(days=over <= 60 * hour + minute), over)
    if begin >= end:
        return  # Clocks are put forward over all of it.
    spec = plan(window, timezone=zone).spec()
    assert planned(spec, begin).workers == planned(spec, end - timedelta(seconds=1)).workers == 8
    assert (planned(spec, begin).since, planned(spec, begin).until) == (begin, end)


def moment(zone: str, day: pendulum.Date, minutes: int) -> datetime:
    """By pendulum: the first of two, and in a gap that much later."""
    found = [
        pendulum.datetime(day.year, day.month, day.day, minutes // 60, minutes % 60, tz=zone, fold=fold)
        for fold in (0, 1)
    ]
    wall = [(each.hour, each.minute) == (minutes // 60, minutes % 60) for each in found]
    first = found[0] if all(wall) else max(found)
    return datetime.fromtimestamp(first.timestamp(), UTC)
