"""Price books: what is taken for one."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.prices.book import SHIPPED, choose_price, read_prices


class TestPrices:
    def test_those_that_ship_are_of_every_cloud_and_lower_for_spot(self) -> None:
        book = read_prices()
        assert {price.cloud for price in book.values()} == {"aws", "gcp", "azure", "alibaba"}
        assert all(0 < price.spot < price.on_demand and price.source for price in book.values())

    def test_are_exact(self) -> None:
        assert read_prices()["aws/g4dn.xlarge"].spot == Decimal("0.2475")

    def test_a_type_that_is_not_there_is_named_with_those_that_are(self) -> None:
        with pytest.raises(InvalidSettings, match=r"aws/x1.*aws/g4dn\.xlarge"):
            choose_price(read_prices(), "aws/x1")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("[aws", "cannot be read"),
            ("", "no prices"),
            ("[aws.big]\nspot = 1.0\n", r"\[aws\.big\] has no 'on_demand'"),
            (SHIPPED.read_text().replace("spot = 0.2475", "spot = 'low'"), "spot is not a number"),
            (SHIPPED.read_text().replace("spot = 0.2475", "spot = -1"), "spot is not between"),
            (SHIPPED.read_text().replace("date = 2026-11-21", "date = 'today'"), "write a date"),
            (SHIPPED.read_text().replace("[gcp.", '[azure."g4dn.xlarge"]\n[gcp.', 1), "has no 'on_demand'"),
            (SHIPPED.read_text().replace('[gcp."g2-standard-4"]', '[gcp."g4dn.xlarge"]'), "for aws and for gcp"),
        ],
    )
    def test_what_is_no_price_book_is_refused(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "prices.toml"
        path.write_text(text)
        with pytest.raises(InvalidDocument, match=says):
            read_prices(path)
