"""Markets for rehearsals from AWS's spot prices: one a zone. Pure.

EC2 tells what machines cost, and not when it took some. A market of it has as many machines as are wanted, at these
prices, and loses all of them while the price is above that on demand, where EC2's own limit is unless a user sets one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from itertools import pairwise

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.rehearsal.trace import Stay, Trace
from elastic_training.cost.spot_prices import Change


def markets(
    changes: Iterable[Change], begin: datetime, end: datetime, *, machines: int, ceiling: Decimal
) -> list[Trace]:
    """Return the markets of the zones, by name.

    Args:
        changes: prices of one instance type.
        begin: of the time that counts; before the first change that is known, its price is taken.
        end: of it.
        machines: in each zone.
        ceiling: US dollars an hour; above, there is no machine.

    Raises:
        InvalidDocument: there are no prices of that time.
    """
    zones: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        if change.time < end:
            zones[change.zone].append(change)
    found = [_market(zone, each, begin, end, machines, ceiling) for zone, each in sorted(zones.items())]
    if not any(market.stays for market in found):
        raise InvalidDocument("EC2 has no spot prices of that time that are at most those on demand")
    return [market for market in found if market.stays]


def _market(zone: str, changes: list[Change], begin: datetime, end: datetime, machines: int, ceiling: Decimal) -> Trace:
    length = (end - begin).total_seconds()
    moments: dict[float, Decimal] = {}
    for change in sorted(changes, key=lambda each: each.time):
        moments[max(0.0, (change.time - begin).total_seconds())] = change.price
    prices = [(at if index else 0.0, price) for index, (at, price) in enumerate(moments.items())]
    spans = [(at, until, price <= ceiling) for (at, price), (until, _) in pairwise([*prices, (length, ceiling)])]
    stays: list[Stay] = []
    open_since: float | None = None
    for at, until, there in spans:
        if there and open_since is None:
            open_since = at
        if open_since is not None and (not there or until >= length):
            stop = until if there else at
            stays += [Stay(f"{at:.0f}.{number}", open_since, stop) for number in range(machines)]
            open_since = None
    return Trace(printable(zone, 100), tuple(stays), length, tuple(prices))
