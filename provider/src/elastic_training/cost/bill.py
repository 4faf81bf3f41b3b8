"""Bill of a run: its cost, its cost on demand, and the saving. Pure; the rules are in docs/cost.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any

from elastic_runtime.kubernetes.nodes import ON_DEMAND, SPOT
from elastic_runtime.prices.book import Price
from elastic_runtime.printable import printable
from elastic_runtime.run.status import MAX_MACHINE_NAME, MAX_USAGE, Status, Usage

CURRENCY = "USD"
_CENT, _TENTH, _MILLISECOND = Decimal("0.01"), Decimal("0.1"), Decimal("0.001")
_HOUR = Decimal(3600)
_LONGEST = 1e11
"""Seconds; more than a thousand workers in a hundred years. Whatever a status says, sums stay exact."""
_EXACT = Context(prec=60, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a bill for one kind of machine. All money is in dollars, rounded to the cent."""

    usage: Usage
    price: Decimal | None
    """An hour, of this capacity type; None: not known, and so is all money of this line."""
    cost: Decimal | None
    idle_cost: Decimal | None
    """The part of the cost for idle seconds."""
    on_demand_cost: Decimal | None
    note: str = ""
    """For people: why there is no price, or what was assumed."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Bill of one run. Sums are of the rounded lines, so that they add up to the cent."""

    lines: tuple[Line, ...]

    @property
    def priced(self) -> tuple[Line, ...]:
        """Return the lines with money."""
        return tuple(line for line in self.lines if line.price is not None)

    @property
    def cost(self) -> Decimal:
        """Cost of the lines with a price."""
        return sum((line.cost or Decimal() for line in self.lines), Decimal("0.00"))

    @property
    def idle_cost(self) -> Decimal:
        """The part of :attr:`cost` for machines that did not train."""
        return sum((line.idle_cost or Decimal() for line in self.lines), Decimal("0.00"))

    @property
    def on_demand_cost(self) -> Decimal:
        """Cost of the same seconds on the same machines, all on demand."""
        return sum((line.on_demand_cost or Decimal() for line in self.lines), Decimal("0.00"))

    @property
    def saving(self) -> Decimal:
        """Negative where spot cost more."""
        return self.on_demand_cost - self.cost

    @property
    def saving_percent(self) -> Decimal | None:
        """Saving in percent of the cost on demand, to a tenth. None: that cost is zero."""
        if not self.on_demand_cost:
            return None
        with localcontext(_EXACT):
            return (100 * self.saving / self.on_demand_cost).quantize(_TENTH)

    @property
    def unpriced_seconds(self) -> Decimal:
        """Seconds of workers on machines without a price."""
        return sum((seconds_of(line.usage.seconds) for line in self.lines if line.price is None), Decimal())


def usage_of(status: Status) -> tuple[Usage, ...]:
    """Bounded, fit to be shown; of a launcher that tells no machines apart, all seconds on ones that are not known."""
    if not status.usage and status.worker_seconds:
        return (Usage(seconds=sum(status.worker_seconds.values())),)
    return tuple(
        Usage(_name(each.capacity_type), _name(each.instance_type), each.seconds, each.idle_seconds)
        for each in status.usage[:MAX_USAGE]
    )


def bill(usage: Iterable[Usage], book: Mapping[str, Price]) -> Bill:
    """Each kind of machine by its price in the book, the dearest first, those without a price last.

    Args:
        usage: seconds by kind of machine.
        book: prices by name, no instance type in two clouds; see :func:`elastic_runtime.prices.book.read_prices`.
    """
    prices = {price.instance: price for price in book.values()}
    with localcontext(_EXACT):
        lines = [_line(each, prices.get(each.instance_type or "")) for each in usage]
    return Bill(tuple(sorted(lines, key=lambda line: (line.cost is None, -(line.cost or Decimal())))))


def _line(usage: Usage, price: Price | None) -> Line:
    if usage.instance_type is None:
        return Line(usage, None, None, None, None, "the instance type is not known")
    if price is None:
        return Line(usage, None, None, None, None, "the instance type is not in the price book")
    if usage.capacity_type not in (SPOT, ON_DEMAND, None):
        return Line(usage, None, None, None, None, "the price book has no price of this capacity type")
    note = "the node has no capacity type: charged as on demand" if usage.capacity_type is None else ""
    rate = price.spot if usage.capacity_type == SPOT else price.on_demand
    seconds = seconds_of(usage.seconds)
    idle = min(seconds_of(usage.idle_seconds), seconds)
    return Line(usage, rate, _money(seconds, rate), _money(idle, rate), _money(seconds, price.on_demand), note)


def _money(seconds: Decimal, price: Decimal) -> Decimal:
    return (seconds * price / _HOUR).quantize(_CENT)


def seconds_of(seconds: float) -> Decimal:
    """Return the seconds, to the millisecond."""
    with localcontext(_EXACT):
        return Decimal(str(min(max(seconds, 0.0), _LONGEST))).quantize(_MILLISECOND)


def _name(label: str | None) -> str | None:
    return None if label is None else printable(label, MAX_MACHINE_NAME)


def plain_usage(usage: Iterable[Usage]) -> list[dict[str, Any]]:
    """Return the usage as plain JSON for the result document, seconds rounded."""
    return [
        {
            "capacity_type": each.capacity_type,
            "instance_type": each.instance_type,
            "seconds": float(seconds_of(each.seconds)),
            "idle_seconds": float(seconds_of(each.idle_seconds)),
        }
        for each in usage
    ]


def plain_bill(made: Bill, book: str) -> dict[str, Any]:
    """For the result document: money as text, which is exact (``"12.30"``); ``book`` says which prices these are."""
    return {
        "currency": CURRENCY,
        "book": book,
        "cost": str(made.cost),
        "idle_cost": str(made.idle_cost),
        "on_demand_cost": str(made.on_demand_cost),
        "saving": str(made.saving),
        "saving_percent": _text(made.saving_percent),
        "unpriced_seconds": float(made.unpriced_seconds),
        "lines": [
            {
                **plain_usage([line.usage])[0],
                "price": _text(line.price),
                "cost": _text(line.cost),
                "idle_cost": _text(line.idle_cost),
                "on_demand_cost": _text(line.on_demand_cost),
                "note": line.note,
            }
            for line in made.lines
        ],
    }


def figures_of(plain: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of a :func:`plain_bill` for a report. Money is omitted if nothing has a price."""
    figures = {}
    if any(line["price"] is not None for line in plain["lines"]):
        figures["cost"] = f"${plain['cost']}"
        percent = "" if plain["saving_percent"] is None else f" ({plain['saving_percent']} %)"
        saving: str = plain["saving"]
        sign = "-" if saving.startswith("-") else ""
        figures["saved, against on demand"] = f"{sign}${saving.removeprefix('-')}{percent}"
        if plain["idle_cost"] != "0.00":
            figures["of the cost, for idle machines"] = f"${plain['idle_cost']}"
    if plain["unpriced_seconds"]:
        figures["worker time without a price"] = f"{plain['unpriced_seconds']:.0f} s"
    return figures


def _text(value: Decimal | None) -> str | None:
    return None if value is None else f"{value:f}"
