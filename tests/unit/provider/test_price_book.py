"""Which prices a run is billed by, and AWS's own."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from botocore.stub import ANY, Stubber

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.prices.book import SHIPPED
from elastic_runtime.run.status import Phase, Status, Usage
from elastic_training.clusters.fake import FakeCluster
from elastic_training.cost.price_book import cost_of
from elastic_training.cost.spot_prices import MOST_PAGES, Change, fetch_changes, mean_prices, read_changes
from tests.unit.provider.operator_bench import NAME, operator, trying

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
USED = (Usage("spot", "g4dn.xlarge", 3600.0),)
RUN = Status("r", "u", Phase.SUCCEEDED, "", NOON + 2 * HOUR, started=NOON, finished=NOON + 2 * HOUR, usage=USED)
LOG = logging.getLogger(__name__)


class TestBook:
    def test_none_is_no_cost(self) -> None:
        assert cost_of(RUN, None, LOG) is None

    def test_is_the_operators_or_else_the_deployments(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (own := tmp_path / "own.toml").write_text(SHIPPED.read_text().replace("0.2475", "0.25"))
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__PRICE_BOOK", "example")
        costs = [
            cost_of(replace(RUN, usage=(Usage("spot", "g4dn.xlarge", 36000.0),)), of, LOG) for of in (None, str(own))
        ]
        assert [(each["cost"], each["book"]) for each in costs if each] == [("2.48", "example"), ("2.50", str(own))]

    def test_that_cannot_be_read_is_refused_before_anything_is_created(self, fake: FakeCluster) -> None:
        with pytest.raises(AirflowFailException, match=r"price_book: /nowhere.*the file does not exist"):
            operator(price_book="/nowhere").execute({"ti": trying()})
        assert not fake.runs
        with pytest.raises(InvalidSettings, match=r"an? int is not a text"):
            operator(price_book=7)

    def test_that_has_vanished_fails_no_training(self, caplog: pytest.LogCaptureFixture) -> None:
        assert cost_of(RUN, "/nowhere", LOG) is None
        assert "the file does not exist" in caplog.text

    def test_makes_the_cost_a_part_of_the_result(self, fake: FakeCluster) -> None:
        fake.script(lambda: fake.publish(NAME, usage=USED), lambda: fake.succeed(NAME))
        result = operator(price_book="example").execute({"ti": trying()})
        assert result is not None
        assert (result["cost"]["cost"], result["cost"]["on_demand_cost"]) == ("0.25", "0.66")
        assert result["usage"][0]["instance_type"] == "g4dn.xlarge"


def change(hours: float, price: str, zone: str = "a") -> Change:
    return Change("g4dn.xlarge", zone, NOON + hours * HOUR, Decimal(price))


class TestMean:
    def test_is_by_time_and_then_of_the_zones(self) -> None:
        one = [change(-5, "0.2"), change(1, "0.4"), change(9, "7")]  # half the time each; and what came later
        assert mean_prices(one, NOON, NOON + 2 * HOUR) == {"g4dn.xlarge": Decimal("0.300000")}
        both = [*one, change(-1, "0.5", "b")]
        assert mean_prices(both, NOON, NOON + 2 * HOUR) == {"g4dn.xlarge": Decimal("0.400000")}

    def test_of_no_time_is_the_newest(self) -> None:
        assert mean_prices([change(-2, "0.2"), change(-1, "0.4")], NOON, NOON) == {"g4dn.xlarge": Decimal("0.400000")}


ENTRY = {"InstanceType": "g4dn.xlarge", "AvailabilityZone": "a", "Timestamp": NOON - HOUR, "SpotPrice": "0.100000"}


class TestEc2:
    @pytest.fixture
    def ec2(self, monkeypatch: pytest.MonkeyPatch) -> Stubber:
        client = boto3.client("ec2", region_name="eu-central-1", aws_access_key_id="a", aws_secret_access_key="b")
        monkeypatch.setattr(boto3, "client", lambda *_, **__: client)
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__AWS_SPOT_PRICES", "True")
        (stub := Stubber(client)).activate()
        return stub

    def answer(self, ec2: Stubber, **more: Any) -> None:
        ec2.add_response("describe_spot_price_history", {"SpotPriceHistory": [ENTRY], **more})

    def test_is_asked_if_allowed_for_what_was_used(self, ec2: Stubber) -> None:
        asked = {
            "InstanceTypes": ["g4dn.xlarge"], "ProductDescriptions": ["Linux/UNIX"], "MaxResults": 1000,
            "StartTime": NOON, "EndTime": NOON + 2 * HOUR,
        }  # fmt: skip
        ec2.add_response("describe_spot_price_history", {"SpotPriceHistory": [ENTRY]}, asked)
        cost = cost_of(RUN, "example", LOG)
        assert cost is not None
        assert (cost["cost"], cost["on_demand_cost"], cost["book"]) == ("0.10", "0.66", "example, spot prices by EC2")

    def test_that_refuses_leaves_the_books_prices(self, ec2: Stubber, caplog: pytest.LogCaptureFixture) -> None:
        ec2.add_client_error("describe_spot_price_history", "UnauthorizedOperation")
        cost = cost_of(RUN, "example", LOG)
        assert cost is not None
        assert (cost["cost"], cost["book"]) == ("0.25", "example")
        assert "UnauthorizedOperation" in caplog.text

    def test_is_asked_for_the_next_page_and_not_for_ever(self, ec2: Stubber) -> None:
        self.answer(ec2, NextToken="more")
        ec2.add_response("describe_spot_price_history", {"SpotPriceHistory": [ENTRY]}, {
            "InstanceTypes": ANY, "ProductDescriptions": ANY, "MaxResults": ANY, "StartTime": ANY, "EndTime": ANY,
            "NextToken": "more",
        })  # fmt: skip
        assert len(fetch_changes("eu-central-1", ["g4dn.xlarge"], NOON, NOON)) == 2
        for _ in range(MOST_PAGES):
            self.answer(ec2, NextToken="more")
        with pytest.raises(InvalidDocument, match="more than 10 pages"):
            fetch_changes("eu-central-1", ["g4dn.xlarge"], NOON, NOON)

    def test_a_region_that_is_none_is_told(self) -> None:
        with pytest.raises(ClusterUnavailable, match="EC2 returned no spot prices"):
            fetch_changes("evil.example.com/\n", ["g4dn.xlarge"], NOON, NOON)

    @pytest.mark.parametrize(
        "wrong",
        [{"SpotPrice": "NaN"}, {"SpotPrice": "-1"}, {"SpotPrice": "1e9"}, {"SpotPrice": "x"}, {"Timestamp": "now"}],
    )
    def test_what_makes_no_sense_is_not_taken(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidDocument):
            read_changes({"SpotPriceHistory": [ENTRY | wrong]})
