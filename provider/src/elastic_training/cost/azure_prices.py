"""``python -m elastic_training.cost.azure_prices FILE… > prices.toml``: a price book of pages of Azure's retail prices.

The pages are those of the Azure Retail Prices API (learn.microsoft.com/rest/api/cost-management/retail-prices), for one
region, which anybody can download without an account; nothing is downloaded here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.prices.book import parse_prices
from elastic_runtime.printable import printable

LARGEST_PAGE = 16 << 20
"""Bytes; pages of the API have less than one MiB."""
_MOST = 100_000
"""Dollars an hour; also none that a price book takes."""
_OTHER_KINDS = ("Low Priority", "Dev", "Cloud Services")
"""In names of what is not a virtual machine by the hour for everybody."""


def price_book(pages: Iterable[Any], today: date) -> str:
    """A price book in TOML of the Linux machines that have both an on-demand and a spot price.

    Args:
        pages: of the API, parsed.
        today: the date of the prices, as the pages do not tell it.

    Raises:
        InvalidDocument: not pages of that API, of more than one region, or without a price.
    """
    regions: set[str] = set()
    prices: dict[str, dict[str, Decimal]] = {}
    for page in pages:
        if not isinstance(page, dict) or not isinstance(items := page.get("Items"), list):
            raise InvalidDocument('not a page of Azure\'s retail prices: there is no list "Items"')
        for item in items:
            if (found := _price(item)) is not None:
                name, kind, price = found
                regions.add(str(item.get("armRegionName")))
                kept = prices.setdefault(name, {})
                kept[kind] = min(price, kept.get(kind, price))
    if len(regions) > 1:
        raise InvalidDocument(f"prices of {printable(', '.join(sorted(regions)))}: download those of one region")
    lines: list[str] = []
    for name, kept in sorted(prices.items()):
        if len(kept) == 2:
            lines += [f"[azure.{json.dumps(name)}]", f"region = {json.dumps(regions.copy().pop())}"]
            lines += [f"on_demand = {kept['on_demand']:f}", f"spot = {kept['spot']:f}", f"date = {today.isoformat()}"]
            lines += ['source = "Azure Retail Prices API"', ""]
    book = "\n".join(lines)
    parse_prices(book.encode(), "the price book")
    return book


def _price(item: Any) -> tuple[str, str, Decimal] | None:
    """Name, kind and dollars an hour; None: not what a worker on Linux costs."""
    if not isinstance(item, dict):
        return None
    name, sku, product = item.get("armSkuName"), item.get("skuName"), item.get("productName")
    if not isinstance(name, str) or not isinstance(sku, str) or not isinstance(product, str) or not name:
        return None
    of_an_hour = item.get("type") == "Consumption" and item.get("unitOfMeasure") == "1 Hour"
    other = "Windows" in product or any(word in f"{sku} {product}" for word in _OTHER_KINDS)
    dollars = item.get("retailPrice")
    if not of_an_hour or other or item.get("currencyCode") != "USD" or not isinstance(dollars, int | float):
        return None
    if not 0 < dollars < _MOST:
        return None
    return name, "spot" if sku.endswith("Spot") else "on_demand", Decimal(str(dollars))


def main(arguments: Sequence[str]) -> int:
    """Print a price book, and return the exit status."""
    try:
        if not arguments:
            raise InvalidDocument(
                "name the downloaded pages: python -m elastic_training.cost.azure_prices page-1.json …"
            )
        sys.stdout.write(price_book(map(_page, arguments), date.today()))  # noqa: DTZ011  # of the one who looks it up
    except (InvalidDocument, OSError) as error:
        sys.stderr.write(f"{printable(error)}\n")
        return 1
    return 0


def _page(path: str) -> Any:
    with Path(path).open("rb") as file:
        raw = file.read(LARGEST_PAGE + 1)
    if len(raw) > LARGEST_PAGE:
        raise InvalidDocument(f"{path} is larger than {LARGEST_PAGE} bytes")
    return parse_json(raw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
