"""Sums over all runs: the same money and time however they are grouped, in words of a terminal, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
import sqlalchemy as sa
from airflow.models.dag import DagModel
from airflow.utils import session as airflow_session
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Usage
from elastic_training.airflow.owners import owners_of
from elastic_training.clusters.fake import FakeCluster
from elastic_training.concurrency.bridge import run
from elastic_training.console.command import costing
from elastic_training.console.command.main import main
from elastic_training.console.costs import known_owners
from elastic_training.cost.bill import bill
from elastic_training.cost.price_book import read_book
from elastic_training.cost.totals import WAYS, Spent, as_csv, lost_cost, total, total_by
from elastic_training.identity.ownership import Owner

cents = st.integers(0, 10**7).map(lambda each: Decimal(each) / 100)
seconds = st.integers(0, 10**9).map(lambda each: Decimal(each) / 1000)


@st.composite
def runs(draw: st.DrawFn) -> Spent:
    names = [draw(st.sampled_from(["a", "b", "c", ""])) for _ in range(4)]
    of_all = draw(seconds)
    idle = draw(st.integers(0, 1000)) * of_all / 1000
    cost = draw(st.none() | cents)
    return Spent(*names, of_all, idle, draw(seconds), cost, cost and cost / 2, cost and cost / 4)


@given(st.lists(runs(), max_size=30))
def test_however_runs_are_grouped_the_sum_is_the_same(found: list[Spent]) -> None:
    everything = total("all", found)
    assert everything.seconds == everything.trained_seconds + everything.idle_seconds
    assert everything.cost == sum((each.cost or 0 for each in found), Decimal())
    for by in WAYS:
        groups = total_by(found, by)
        assert len({each.name for each in groups}) == len(groups)
        for column in ("runs", "unpriced", "seconds", "trained_seconds", "idle_seconds", "lost_seconds",
                       "cost", "idle_cost", "lost_cost"):  # fmt: skip
            assert sum(getattr(each, column) for each in groups) == getattr(everything, column)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_lost_time_never_costs_more_than_the_run(lost: float, lasted: float) -> None:
    book = read_book("example")
    assert book is not None
    made = bill([Usage("spot", "g4dn.xlarge", 7200.0, 0.0)], book)
    assert 0 <= lost_cost(made, lost, lasted) <= made.cost


def test_a_spreadsheet_takes_no_name_for_a_formula() -> None:
    found = [Spent("=1+1", "", "2026-11", "local", Decimal(1), Decimal(0), Decimal(0))]
    head, row = csv.reader(io.StringIO(as_csv(total_by(found, "dag"), "dag")))
    assert (head[0], row[0], row[1]) == ("dag", "'=1+1", "1")


@pytest.fixture
def spent(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Two runs of one DAG, and one of another."""
    monkeypatch.setattr(costing, "read_book", lambda _: read_book("example"))
    monkeypatch.setattr(costing, "deployment", lambda: "")
    for number, dag in enumerate(("nightly", "nightly", "weekly")):
        spec = RunSpec(f"run-{number}", f"uid-{number}", ("python", "train.py"))
        run(fake.claim(spec, Owner(dag, f"r{number}", "train", -1, 1, "nonce").text()))
        usage = (Usage("spot", "g4dn.xlarge", 3600.0, 900.0),)
        begun = datetime(2026, 10 + (dag == "weekly"), 1, tzinfo=UTC)
        fake.publish(f"run-{number}", usage=usage, lost_seconds={"standing": 60.0}, started=begun)
    return fake


def test_at_a_terminal_by_dag(spent: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["costs"]) == 0
    head, first, second, everything = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:2] == ["DAG", "RUNS"]
    assert first[:5] == ["nightly", "2", "1.50", "0.50", "0.03"]
    assert (second[0], everything[0], everything[1]) == ("weekly", "all", "3")
    assert Decimal(first[5]) == 2 * Decimal(second[5]) > 0


def test_since_a_day_as_json_and_csv(spent: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["costs", "--by", "month", "--since", "2026-11-01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["totals"]] == ["2026-11"]
    assert found["all"]["seconds"] == 3600.0
    assert main(["costs", "--by", "place", "--csv"]) == 0
    head, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert (head[0], row[:2]) == ("place", ["local", "3"])
    with pytest.raises(SystemExit):
        main(["costs", "--since", "yesterday"])


def test_teams_are_the_owners_in_airflows_database(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    table = DagModel.__table__
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateTable(table, include_foreign_key_constraints=[]))
        filled = {name: column for name, column in table.c.items() if not column.nullable and name != "dag_id"}
        needed = {name: 0 if column.type.python_type in (bool, int) else "" for name, column in filled.items()}
        connection.execute(table.insert().values({**needed, "dag_id": "nightly", "owners": "vision, ops"}))
    monkeypatch.setattr(airflow_session, "create_session", lambda: Session(engine))
    assert owners_of({"nightly", "weekly"}) == {"nightly": "vision, ops"}
    monkeypatch.setattr(airflow_session, "create_session", lambda: Session(sa.create_engine("sqlite://")))
    assert known_owners({"nightly"}) == {}
