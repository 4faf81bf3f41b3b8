"""A deadline and a budget, as users write them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.run.spec import RunSpec
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.outcome.retrying import HOPELESS, Failure, Outlook, decide_retry
from elastic_training.settings import Deadline, SizePlan, SizeWindow, Workers

NOW = datetime(2026, 11, 27, 14, tzinfo=UTC)
MORNING = Deadline(by="06:00", time_zone="Europe/Berlin")


def operator(**more: Any) -> ElasticTorchOperator:
    settings: dict[str, Any] = {"command": ["python", "train.py"], "workers": Workers(1, 2, 8), "deadline": MORNING}
    return ElasticTorchOperator(task_id="train", **(settings | more))


def test_it_reaches_the_launcher() -> None:
    written = Deadline(by="06:00", time_zone="Europe/Berlin", budget=40, price="0.25")
    spec = from_json(RunSpec, to_json(operator(deadline=written).spec("run"))).deadline
    assert spec is not None
    assert (spec.budget, spec.price, spec.time_zone) == (40.0, 0.25, "Europe/Berlin")
    assert spec.by is not None
    assert timedelta(0) < spec.by - utc_now() <= timedelta(days=1)
    assert operator(deadline=None).spec("run").deadline is None


@pytest.mark.parametrize(
    ("by", "zone", "moment"),
    [
        ("06:00", "Europe/Berlin", "2026-11-28T05:00Z"),
        ("16:00", "Europe/Berlin", "2026-11-27T15:00Z"),
        ("15:00", "Europe/Berlin", "2026-11-28T14:00Z"),  # which is now, so it is tomorrow's
        ("02:00", "Asia/Tokyo", "2026-11-27T17:00Z"),
        ("2026-11-29T06:00", "Europe/Berlin", "2026-11-29T05:00Z"),
        ("2026-11-29 06:00+09:00", None, "2026-11-28T21:00Z"),
        ("2026-11-01T06:00", "UTC", "2026-11-01T06:00Z"),  # of a later try
        (datetime(2026, 11, 29, 6), "Asia/Tokyo", "2026-11-28T21:00Z"),  # noqa: DTZ001  # has its zone beside it
    ],
)
def test_times(by: Any, zone: str | None, moment: str) -> None:
    assert Deadline(by=by, time_zone=zone).spec(NOW, None).by == datetime.fromisoformat(moment)


def test_a_time_that_a_day_does_not_have_is_an_hour_later() -> None:
    spring = datetime(2026, 3, 28, 20, tzinfo=UTC)
    spec = Deadline(by="02:30", time_zone="Europe/Berlin").spec(spring, None)
    assert spec.by == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


@given(
    st.times(),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001  # hypothesis wants them so
)
def test_a_time_of_day_is_the_next_one(time: Any, zone: str, now: datetime) -> None:
    moment = now.replace(tzinfo=UTC)
    spec = Deadline(by=f"{time:%H:%M}", time_zone=zone).spec(moment, None)
    assert spec.by is not None
    assert timedelta(0) < spec.by - moment <= timedelta(hours=25, minutes=1)


@given(st.text(max_size=20) | st.sampled_from(["06:00", "6:00", "24:00", "2026-02-30", "9999-12-31T23:59-12:00"]))
def test_what_is_no_time_is_refused(by: str) -> None:
    with suppress(InvalidSettings):
        spec = Deadline(by=by, time_zone="UTC").spec(NOW, None)
        assert spec.by is not None
        assert spec.by.tzinfo is UTC


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "deadline"),
        ({"price": 1.0}, "deadline"),
        ({"by": "06:00"}, "deadline.by"),
        ({"by": "2026-11-29T06:00"}, "deadline.by"),
        ({"by": "morning", "time_zone": "UTC"}, "deadline.by"),
        ({"by": "0001-01-01T00:00", "time_zone": "UTC"}, "deadline.by"),
        ({"by": 6, "time_zone": "UTC"}, "deadline.by"),
        ({"by": "06:00", "time_zone": "Mars/Olympus"}, "deadline.time_zone"),
        ({"by": "06:00", "time_zone": "../../etc/passwd"}, "deadline.time_zone"),
        ({"budget": 0, "price": 1}, "deadline.budget"),
        ({"budget": "much", "price": 1}, "deadline.budget"),
        ({"budget": float("nan"), "price": 1}, "deadline.budget"),
        ({"budget": True, "price": 1}, "deadline.budget"),
        ({"budget": 1, "price": -1}, "deadline.price"),
        ({"budget": 1, "price": float("inf")}, "deadline.price"),
    ],
)
def test_what_is_no_deadline_is_refused_at_parse(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Deadline(**settings)
    assert refused.value.field == field


def test_beside_a_size_plan_it_is_refused_at_parse() -> None:
    plan = SizePlan(windows=[SizeWindow(8, "22:00", "06:00")], otherwise=2, timezone="UTC")
    with pytest.raises(InvalidSettings, match="size_plan"):
        operator(size_plan=plan)


class TestThePriceOfAWorker:
    SPEND = Deadline(budget=40.0)

    @pytest.mark.parametrize(("spot", "price"), [(True, 0.2475), (False, 0.658)])
    def test_is_in_the_price_book(self, spot: bool, price: float, tmp_path: Any) -> None:
        book = tmp_path / "prices.toml"
        fields = 'region = "r"\non_demand = 0.658\nspot = 0.2475\ndate = 2026-11-21\nsource = "s"\n'
        book.write_text(f'[aws."g4dn.xlarge"]\n{fields}')
        workers = Workers(1, 2, 8, machine="g4dn.xlarge", spot=spot)
        task = operator(deadline=self.SPEND, workers=workers, price_book=str(book), cluster="training")
        spec = task.spec("run").deadline
        assert spec is not None
        assert spec.price == price
        task.deadline = Deadline(budget=40.0, price=0.1)
        spec = task.spec("run").deadline
        assert spec is not None
        assert spec.price == 0.1

    def test_is_missed_at_parse_and_when_the_run_is_created(self) -> None:
        with pytest.raises(InvalidSettings, match="price"):
            operator(deadline=self.SPEND)
        task = operator(deadline=self.SPEND, workers=Workers(1, 2, 8, machine="g4dn.xlarge"), cluster="training")
        with pytest.raises(InvalidSettings, match="price of a worker is not known"):
            task.spec("run")


def test_templates_and_mappings_are_checked_when_they_are_rendered() -> None:
    written = Deadline(by="{{ by }}", time_zone="{{ zone }}", budget="{{ dollars }}", price="{{ price }}")
    task = operator(deadline=written)
    values = {"{{ by }}": "06:00", "{{ zone }}": "UTC", "{{ dollars }}": "40", "{{ price }}": "0.5"}
    task.deadline = written.rendered(lambda text: values.get(text, text))
    spec = task.spec("run").deadline
    assert spec is not None
    assert (spec.budget, spec.price) == (40.0, 0.5)
    task.deadline = written.rendered(lambda text: {**values, "{{ by }}": "late"}.get(text, text))
    with pytest.raises(InvalidSettings, match="is not a time"):
        task.spec("run")
    operator(deadline=Deadline(by="{{ data_interval_end }}"))
    assert operator(deadline={"by": "06:00", "time_zone": "UTC"}).deadline == Deadline(by="06:00", time_zone="UTC")
    with pytest.raises(InvalidSettings, match=r"deadline\.until"):
        operator(deadline={"until": "06:00"})


def test_a_run_that_has_spent_its_budget_is_not_tried_again() -> None:
    assert FailureKind.BUDGET in HOPELESS
    assert decide_retry([Failure(FailureKind.BUDGET)]).outlook is Outlook.NEVER
