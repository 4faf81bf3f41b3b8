"""AWS's own spot prices, from the API that EC2 has for them (DescribeSpotPriceHistory_).

.. _DescribeSpotPriceHistory: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation, localcontext
from itertools import pairwise
from typing import Any

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, MissingRight
from elastic_runtime.printable import printable

MOST_PAGES = 10
"""Pages of 1000 prices that are read at most."""
RIGHT = "ec2:DescribeSpotPriceHistory"
_REFUSALS = ("UnauthorizedOperation", "AccessDenied", "AuthFailure", "OptInRequired")
_PRODUCT = "Linux/UNIX"
_MOST = Decimal(100_000)
_MICRODOLLAR = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class Change:
    """Change of an instance type's spot price in a zone."""

    instance: str
    zone: str
    time: datetime
    price: Decimal
    """US dollars an hour, from then on."""


def mean_prices(changes: Iterable[Change], begin: datetime, end: datetime) -> Mapping[str, Decimal]:
    """By instance type: the mean over that time in each zone, and of these the mean, to a millionth of a dollar."""
    zones: dict[str, dict[str, list[Change]]] = defaultdict(lambda: defaultdict(list))
    for change in changes:
        zones[change.instance][change.zone].append(change)
    with localcontext(Context(prec=40, rounding=ROUND_HALF_UP)):
        means = {name: [_mean(each, begin, end) for each in of.values()] for name, of in zones.items()}
        return {name: (sum(each, Decimal()) / len(each)).quantize(_MICRODOLLAR) for name, each in means.items()}


def _mean(changes: list[Change], begin: datetime, end: datetime) -> Decimal:
    """In one zone. Before the first change that is known, its price is taken."""
    changes = sorted(changes, key=lambda change: change.time)
    moments = [begin, *(min(max(change.time, begin), end) for change in changes[1:]), end]
    spans = [Decimal(str((after - at).total_seconds())) for at, after in pairwise(moments)]
    if not sum(spans):
        return changes[-1].price
    weighed = (span * change.price for span, change in zip(spans, changes, strict=True))
    return sum(weighed, Decimal()) / sum(spans)


def read_changes(answer: Mapping[str, Any]) -> list[Change]:
    """One page of an answer. Raises InvalidDocument."""
    found = []
    try:
        for each in answer["SpotPriceHistory"]:
            price = Decimal(each["SpotPrice"])
            if not price.is_finite() or not 0 < price <= _MOST:
                raise InvalidDocument(f"EC2 returned a spot price of {printable(each['SpotPrice'], 40)}")
            time = each["Timestamp"]
            if not isinstance(time, datetime) or time.tzinfo is None:
                raise InvalidDocument("EC2 returned a spot price without a time")
            found.append(Change(str(each["InstanceType"]), str(each["AvailabilityZone"]), time, price))
    except (KeyError, TypeError, InvalidOperation) as error:
        raise InvalidDocument(f"EC2's spot prices cannot be read: {type(error).__name__}") from None
    return found


def fetch_changes(region: str, instances: Iterable[str], begin: datetime, end: datetime) -> list[Change]:
    """Fetch EC2's price changes of that time, and the price at its start, with boto3's own credentials.

    Needs the right :data:`RIGHT`. Waits for at most some seconds a page.

    Raises:
        ClusterUnavailable: EC2 does not answer, or refuses.
        InvalidDocument: the answer makes no sense, or has more than :data:`MOST_PAGES` pages.
        MissingRight: the credentials may not ask.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    max_wait = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2, "mode": "standard"})
    found: list[Change] = []
    try:
        client = boto3.client("ec2", region_name=region, config=max_wait)
        asked = {
            "InstanceTypes": sorted(instances),
            "ProductDescriptions": [_PRODUCT],
            "StartTime": begin,
            "EndTime": end,
            "MaxResults": 1000,
        }
        for _ in range(MOST_PAGES):
            answer = client.describe_spot_price_history(**asked)
            found += read_changes(answer)
            if not (token := answer.get("NextToken")):
                return found
            asked["NextToken"] = token
    except InvalidDocument:
        raise
    except NoCredentialsError:
        raise MissingRight(f"boto3 has no credentials; EC2 wants some with the right {RIGHT}") from None
    except (BotoCoreError, ClientError, ValueError) as error:  # ValueError: a region that cannot be one
        if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _REFUSALS:
            remedy = f"give boto3's credentials the right {RIGHT}"
            raise MissingRight(f"EC2 refuses its spot prices: {printable(error)}; {remedy}") from None
        raise ClusterUnavailable(f"EC2 returned no spot prices of {printable(region)}: {printable(error)}") from None
    raise InvalidDocument(f"EC2 returned more than {MOST_PAGES} pages of spot prices of {printable(region)}")
