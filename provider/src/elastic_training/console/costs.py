"""What the runs of all places have cost together: for the page, its API and the command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict

from elastic_runtime.run.status import MAX_USAGE
from elastic_training.airflow.owners import owners_of
from elastic_training.console.places import FoundRun
from elastic_training.cost.bill import CURRENCY, Bill, seconds_of
from elastic_training.cost.totals import By, Spent, lost_cost, total, total_by
from elastic_training.identity.ownership import Owner

log = logging.getLogger(__name__)
Bills = Callable[[FoundRun, Owner], Bill | None]


class CostsWanted(BaseModel):
    """Which runs, and what they are summed up by."""

    model_config = ConfigDict(extra="forbid")

    by: By = "dag"
    since: date | None = None
    """First day of the runs' beginnings, in UTC."""
    csv: bool = False


def spent(
    runs: Iterable[tuple[FoundRun, Owner]], bills: Bills, since: date | None, teams: Callable[[Collection[str]], Any]
) -> list[Spent]:
    """Each run, priced.

    Args:
        runs: of all places.
        bills: the bill of each; None: it has no price.
        since: first day.
        teams: owners of DAGs.
    """
    chosen = [(each, owner) for each, owner in runs if since is None or _begun(each).date() >= since]
    owners = teams({owner.dag_id for _, owner in chosen})
    return [_spent(each, owner, bills(each, owner), owners.get(owner.dag_id, "")) for each, owner in chosen]


def _spent(each: FoundRun, owner: Owner, made: Bill | None, team: str) -> Spent:
    head, usage = each.headline, each.headline.usage[:MAX_USAGE]
    seconds = sum((seconds_of(one.seconds) for one in usage), Decimal())
    idle = sum((min(seconds_of(one.idle_seconds), seconds_of(one.seconds)) for one in usage), Decimal())
    lost = float(seconds_of(sum(head.lost_seconds.values())))
    lasted = ((head.finished or head.updated) - _begun(each)).total_seconds()
    priced = made if made and made.priced else None
    return Spent(
        *(owner.dag_id, team, f"{_begun(each):%Y-%m}", each.place, seconds, idle, seconds_of(lost)),
        cost=priced.cost if priced else None,
        idle_cost=priced.idle_cost if priced else None,
        lost_cost=lost_cost(priced, lost, lasted) if priced else None,
    )


def _begun(each: FoundRun) -> datetime:
    return (each.headline.started or each.headline.updated).astimezone(UTC)


def known_owners(dag_ids: Collection[str]) -> dict[str, str]:
    """Return owners of DAGs; nothing where Airflow's database does not tell."""
    try:
        return owners_of(dag_ids)
    except Exception as error:  # noqa: BLE001  # a database's, Airflow's: sums are there without teams
        log.warning("Cannot read the owners of %d DAGs from Airflow: %s", len(dag_ids), type(error).__name__)
        return {}


def no_owners(_dag_ids: Collection[str]) -> dict[str, str]:
    """Nothing: nobody asked for teams."""
    return {}


def plain_costs(runs: list[Spent], by: By) -> dict[str, Any]:
    """As JSON."""
    return {
        "by": by,
        "currency": CURRENCY,
        "totals": [each.plain() for each in total_by(runs, by)],
        "all": total("all", runs).plain(),
    }
