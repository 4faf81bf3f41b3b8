"""A price book of Azure's retail prices, as they are downloaded."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.prices.book import parse_prices, read_prices
from elastic_training.cost.azure_prices import main, price_book

DAY = date(2026, 11, 22)


def item(sku: str, price: Any, **changes: Any) -> dict[str, Any]:
    """As in the API's own example."""
    return {
        "currencyCode": "USD",
        "retailPrice": price,
        "armRegionName": "westeurope",
        "productName": "Virtual Machines NCasT4_v3 Series",
        "skuName": sku,
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": "Standard_NC4as_T4_v3",
        **changes,
    }


ITEMS = [
    item("NC4as T4 v3", 0.605),
    item("NC4as T4 v3 Spot", 0.2118),
    item("NC4as T4 v3 Low Priority", 0.121),
    item("NC4as T4 v3", 0.789, productName="Virtual Machines NCasT4_v3 Series Windows"),
    item("NC4as T4 v3", 3000.0, type="Reservation"),
    item("NC4as T4 v3", 0.5, currencyCode="EUR"),
    item("NC8as T4 v3", 1.2, armSkuName="Standard_NC8as_T4_v3"),
]


def test_linux_machines_with_both_prices_are_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (page := tmp_path / "page.json").write_text(json.dumps({"Items": ITEMS, "NextPageLink": None}))
    assert main([str(page)]) == 0
    (book := tmp_path / "prices.toml").write_text(capsys.readouterr().out)
    (price,) = read_prices(book).values()
    assert (price.name, price.region) == ("azure/Standard_NC4as_T4_v3", "westeurope")
    assert (price.on_demand, price.spot) == (Decimal("0.605"), Decimal("0.2118"))


@pytest.mark.parametrize(
    "pages",
    [
        [],
        [None],
        [{"Items": 3}],
        [{"Items": [3, None, {}, {"armSkuName": 3}]}],
        [{"Items": [*ITEMS, item("NC4as T4 v3", 1.0, armRegionName="eastus")]}],
        [{"Items": [item("x", 1e300), item("x Spot", 1e300)]}],
        [{"Items": [item("x", float("nan")), item("x Spot", float("nan"))]}],
    ],
)
def test_what_is_no_list_of_prices_is_refused(pages: list[Any]) -> None:
    with pytest.raises(InvalidDocument):
        price_book(pages, DAY)


def test_names_cannot_write_lines_of_the_book() -> None:
    name = 'x"]\nspot = 1\n[aws."y'
    book = price_book([{"Items": [item("x", 2, armSkuName=name), item("x Spot", 1, armSkuName=name)]}], DAY)
    (price,) = parse_prices(book.encode(), "book").values()
    assert (price.cloud, price.instance) == ("azure", name)


def test_files_that_are_none_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.json").write_text("<html>")
    for arguments in ([], [str(tmp_path / "missing")], [str(tmp_path / "page.json")]):
        assert main(arguments) == 1
        assert capsys.readouterr().err
