"""By which prices a run is billed: the operator's price book or the deployment's, and AWS's spot prices if allowed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.kubernetes.nodes import SPOT
from elastic_runtime.prices.book import SHIPPED, Price, read_prices
from elastic_runtime.printable import printable
from elastic_runtime.run.status import Status
from elastic_training.airflow.sdk import conf
from elastic_training.cost.bill import bill, plain_bill, usage_of
from elastic_training.cost.spot_prices import fetch_changes, mean_prices
from elastic_training.settings.templating import is_template

EXAMPLE = "example"
"""Names the price book that ships."""
_SECTION = "elastic_training"


class _Log(Protocol):
    def warning(self, message: str, /, *args: object) -> object: ...


def named_book(given: Any) -> str:
    """Return the given price book, or ``[elastic_training] price_book``. Empty: none."""
    return str(given or conf.get(_SECTION, "price_book", fallback="") or "").strip()


def read_book(given: Any) -> Mapping[str, Price] | None:
    """The prices; None: there is no price book.

    Args:
        given: to the operator: a path, ``"example"``, or None.

    Raises:
        InvalidSettings: it is not a price book, or cannot be read.
    """
    if not (name := named_book(given)):
        return None
    try:
        return read_prices(SHIPPED if name == EXAMPLE else Path(name))
    except InvalidDocument as error:
        remedy = f"Write the path of a price book, or {EXAMPLE!r} for the one that ships; see docs/cost.md"
        raise InvalidSettings("price_book", str(error), remedy) from None


def worker_price(given: Any, machine: str | None, *, spot: bool) -> float | None:
    """Return the price of a worker that has a machine of its own, in dollars an hour. None: the book has none.

    Args:
        given: as :func:`read_book`.
        machine: instance type; None: not known.
        spot: whether it is spot capacity.

    Raises:
        InvalidSettings: as :func:`read_book`.
    """
    prices = (read_book(given) or {}).values()
    price = next((each for each in prices if each.instance == machine), None)
    return None if price is None else float(price.spot if spot else price.on_demand)


def check_price_book(given: Any) -> None:
    """Check at DAG parse that a price book is a text. Raise InvalidSettings."""
    if given is not None and not is_template(given) and not isinstance(given, str):
        problem = f"a {type(given).__name__} is not a text"
        raise InvalidSettings("price_book", problem, 'Write a path, price_book="/opt/airflow/prices.toml"')


def cost_of(status: Status, given: Any, log: _Log, *, ask_cloud: bool = True) -> dict[str, Any] | None:
    """Return the run's cost for its result document. None: there is no price book. See docs/cost.md.

    If the price book or a price cannot be read, there is a warning and no cost: no training fails for it.

    Args:
        status: of the run.
        given: as :func:`read_book`.
        log: for what cannot be had.
        ask_cloud: whether EC2 may be asked for spot prices, where ``[elastic_training] aws_spot_prices`` allows it.
    """
    try:
        return _cost_of(status, given, log, ask_cloud=ask_cloud)
    except InvalidSettings as error:
        log.warning("What the run cost is not known: %s", error)
    except Exception as error:  # noqa: BLE001  # a file system's, a book's: the training is over
        log.warning("What the run cost is not known: %s: %s", type(error).__name__, printable(error))
    return None


def _cost_of(status: Status, given: Any, log: _Log, *, ask_cloud: bool) -> dict[str, Any] | None:
    book = read_book(given)
    if book is None:
        return None
    name = printable(named_book(given))
    if ask_cloud and asks_cloud():
        book, name = _with_spot_prices(book, name, status, log)
    return plain_bill(bill(usage_of(status), book), name)


def asks_cloud() -> bool:
    """Whether the deployment allows to ask EC2."""
    # Not getboolean, which raises for another word, and the training is over.
    return str(conf.get(_SECTION, "aws_spot_prices", fallback="")).strip().lower() in ("true", "t", "1")


def _with_spot_prices(
    book: Mapping[str, Price], name: str, status: Status, log: _Log
) -> tuple[Mapping[str, Price], str]:
    """With AWS's own prices of the run's time for its spot machines in the book, as far as they can be had."""
    begin, end = status.started or status.updated, status.finished or status.updated
    used = {each.instance_type for each in status.usage if each.capacity_type == SPOT}
    regions: dict[str, list[Price]] = defaultdict(list)
    for price in book.values():
        if price.cloud == "aws" and price.instance in used:
            regions[price.region].append(price)
    changed = dict(book)
    for region, prices in regions.items():
        for price in _asked(region, prices, begin, max(begin, end), log):
            changed[price.name] = price
    return changed, f"{name}, spot prices by EC2" if changed != dict(book) else name


def _asked(region: str, prices: list[Price], begin: datetime, end: datetime, log: _Log) -> list[Price]:
    try:
        means = mean_prices(fetch_changes(region, {each.instance for each in prices}, begin, end), begin, end)
    except ElasticError as error:
        log.warning("The price book's own spot prices are taken: %s", error)
        return []
    return [replace(each, spot=means[each.instance]) for each in prices if each.instance in means]
