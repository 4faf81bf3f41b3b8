"""What all runs have cost together, by DAG, team, month or place. Pure; docs/cost.md has the rules."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal, get_args

from elastic_training.cost.bill import CURRENCY, Bill

By = Literal["dag", "team", "month", "place"]
WAYS: tuple[By, ...] = get_args(By)
_CENT = Decimal("0.01")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet takes for a formula."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One run."""

    dag: str
    team: str
    """Owners of the DAG; empty: not known."""
    month: str
    """Of its beginning, in UTC: ``2026-11``."""
    place: str
    seconds: Decimal
    """Of all its workers."""
    idle_seconds: Decimal
    """Of these, without a rank in a world that trains."""
    lost_seconds: Decimal
    """Of the run, not of workers: steps that were repeated, and other time lost."""
    cost: Decimal | None = None
    """In dollars; None: none of its machines has a price."""
    idle_cost: Decimal | None = None
    lost_cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """Several runs. Money is in dollars, of the runs that have a price."""

    name: str
    runs: int
    unpriced: int
    """Runs without a price."""
    seconds: Decimal
    trained_seconds: Decimal
    idle_seconds: Decimal
    lost_seconds: Decimal
    cost: Decimal
    idle_cost: Decimal
    lost_cost: Decimal

    def plain(self) -> dict[str, Any]:
        """As JSON: seconds as numbers, money as text, which is exact."""
        values = asdict(self)
        money = {name: str(values.pop(name)) for name in ("cost", "idle_cost", "lost_cost")}
        return {name: float(each) if isinstance(each, Decimal) else each for name, each in values.items()} | money


def lost_cost(made: Bill, lost: float, lasted: float) -> Decimal:
    """Return the part of a bill for time that was lost: its share of the run's time."""
    if lost <= 0 or lasted <= 0:
        return Decimal("0.00")
    share = min(Decimal(1), Decimal(str(lost)) / Decimal(str(lasted)))
    return (made.cost * share).quantize(_CENT, ROUND_HALF_UP)


def total_by(runs: Iterable[Spent], by: By) -> list[Total]:
    """Sum runs up: the dearest first, months by time with the newest first."""
    groups: dict[str, list[Spent]] = defaultdict(list)
    for each in runs:
        groups[getattr(each, by)].append(each)
    totals = [total(name, those) for name, those in groups.items()]
    if by == "month":
        return sorted(totals, key=lambda each: each.name, reverse=True)
    return sorted(totals, key=lambda each: (-each.cost, -each.seconds, each.name))


def total(name: str, runs: Iterable[Spent]) -> Total:
    """Sum all of these runs up."""
    those = tuple(runs)
    seconds = sum((each.seconds for each in those), Decimal())
    idle = sum((each.idle_seconds for each in those), Decimal())
    return Total(
        name,
        len(those),
        sum(each.cost is None for each in those),
        seconds,
        seconds - idle,
        idle,
        sum((each.lost_seconds for each in those), Decimal()),
        sum((each.cost or Decimal() for each in those), Decimal("0.00")),
        sum((each.idle_cost or Decimal() for each in those), Decimal("0.00")),
        sum((each.lost_cost or Decimal() for each in those), Decimal("0.00")),
    )


def as_csv(totals: Iterable[Total], by: By) -> str:
    """Return a table for spreadsheets. A name that one would take for a formula gets an apostrophe before it."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = ("runs", "unpriced", "seconds", "trained_seconds", "idle_seconds", "lost_seconds")
    money = ("cost", "idle_cost", "lost_cost")
    table.writerow((by, *names, *(f"{name}_{CURRENCY.lower()}" for name in money)))
    for each in totals:
        name = f"'{each.name}" if each.name.startswith(_FORMULA) else each.name
        table.writerow((name, *(getattr(each, column) for column in (*names, *money))))
    return text.getvalue()
