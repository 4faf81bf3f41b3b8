"""What a run cost: the worked example of docs/cost.md, and what has no price."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from elastic_runtime.prices.book import parse_prices, read_prices
from elastic_runtime.run.status import Phase, Status, Usage
from elastic_training.cost.bill import Line, bill, figures_of, plain_bill, usage_of
from elastic_training.report import render_report

GUIDE = (Path(__file__).parents[3] / "docs" / "cost.md").read_text(encoding="utf-8")
USED = (
    Usage("spot", "g4dn.xlarge", 31_415.0, 1_234.5),
    Usage("on-demand", "g4dn.xlarge", 7_200.0, 0.0),
    Usage("spot", "p9.huge", 600.0, 0.0),
)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
RUN = Status("run", "uid", Phase.SUCCEEDED, "", NOON, usage=USED)


def row(line: Line) -> str:
    money = (
        "–" if each is None else f"{each}" for each in (line.price, line.cost, line.idle_cost, line.on_demand_cost)
    )
    used = line.usage
    cells = (used.capacity_type, used.instance_type, f"{used.seconds:,.1f}", f"{used.idle_seconds:,.1f}", *money)
    return f"| {' | '.join(map(str, cells))} |"


class TestWorkedExample:
    def test_is_that_of_the_guide_to_the_cent(self) -> None:
        [book] = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
        made = bill(USED, parse_prices(book.encode(), "docs/cost.md"))
        for line in made.lines:
            assert row(line) in GUIDE
        assert (made.cost, made.idle_cost, made.on_demand_cost) == (Decimal("3.48"), Decimal("0.08"), Decimal("7.06"))
        assert (made.saving, made.saving_percent) == (Decimal("3.58"), Decimal("50.7"))
        assert (
            f"| priced |  | 38,615.0 | 1,234.5 |  | {made.cost} | {made.idle_cost} | {made.on_demand_cost} |" in GUIDE
        )
        assert f"saved {made.saving} of {made.on_demand_cost} dollars, {made.saving_percent} %" in GUIDE

    def test_what_is_shown_adds_up(self) -> None:
        many = [Usage("spot", "g4dn.xlarge", 0.1 * number, 0.07 * number) for number in range(3000)]
        made = bill(many, read_prices())
        assert made.cost == sum((line.cost or Decimal() for line in made.lines), Decimal())
        assert made.cost + made.saving == made.on_demand_cost
        assert all(line.idle_cost <= line.cost for line in made.lines if line.cost and line.idle_cost)


class TestWithoutAPrice:
    @pytest.mark.parametrize(
        ("usage", "note"),
        [
            (Usage("spot", None, 9.0), "instance type is not known"),
            (Usage("spot", "x1", 9.0), "not in the price book"),
            (Usage("reserved", "g4dn.xlarge", 9.0), "no price of this capacity type"),
        ],
    )
    def test_there_are_seconds_and_no_money_and_it_says_so(self, usage: Usage, note: str) -> None:
        made = bill([usage], read_prices())
        [line] = made.lines
        assert (line.cost, line.on_demand_cost, made.priced) == (None, None, ())
        assert note in line.note
        assert made.unpriced_seconds == 9
        assert (made.cost, made.saving_percent) == (0, None)
        assert "cost" not in figures_of(plain_bill(made, "example"))

    def test_a_node_that_does_not_tell_its_capacity_is_on_demand_and_that_is_said(self) -> None:
        [line] = bill([Usage(None, "g4dn.xlarge", 3600.0)], read_prices()).lines
        assert (line.cost, line.on_demand_cost) == (Decimal("0.66"), Decimal("0.66"))
        assert "charged as on demand" in line.note

    def test_seconds_of_a_launcher_that_knew_no_machines_are_told(self) -> None:
        old = replace(RUN, usage=(), worker_seconds={"a": 2.0, "b": 3.0})
        assert usage_of(old) == (Usage(seconds=5.0),)


class TestHostileStatus:
    @pytest.mark.parametrize("seconds", [1.7e308, -1.0, 5e-324])
    def test_no_seconds_break_the_bill(self, seconds: float) -> None:
        plain = plain_bill(bill([Usage("spot", "g4dn.xlarge", seconds, 1e300)], read_prices()), "example")
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert "E" not in plain["cost"]

    def test_labels_are_cut_and_cannot_write_lines(self) -> None:
        [used] = usage_of(replace(RUN, usage=(Usage("spot\n", "x" * 10_000 + "\n", 1.0),)))
        assert "\n" not in str(used.capacity_type)
        assert len(used.instance_type or "") <= 63
        assert len(usage_of(replace(RUN, usage=(Usage(),) * 1000))) == 50


def test_the_report_tells_the_cost_where_there_is_a_price_book() -> None:
    plain = plain_bill(bill(usage_of(RUN), read_prices()), "example")
    assert "$3.48" in (page := render_report(RUN, cost=plain))
    assert "$3.58 (50.7 %)" in page
    assert "600 s" in page
    assert "against on demand" not in render_report(RUN)
