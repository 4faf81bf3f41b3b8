"""Sums up what runs have cost, at a terminal."""

from __future__ import annotations

import sys
from argparse import Namespace

from elastic_runtime.errors import ElasticError
from elastic_training.concurrency.bridge import run
from elastic_training.console.command.exit_status import DONE, REFUSED
from elastic_training.console.command.finding import listing
from elastic_training.console.command.output import print_error, print_json, print_line, print_table
from elastic_training.console.costs import known_owners, no_owners, plain_costs, spent
from elastic_training.console.places import FoundRun
from elastic_training.cost.bill import Bill, bill
from elastic_training.cost.price_book import read_book
from elastic_training.cost.totals import as_csv, total, total_by
from elastic_training.identity.deployment import deployment
from elastic_training.identity.ownership import Owner

_HEAD = ("RUNS", "TRAINED H", "IDLE H", "LOST H", "COST $", "IDLE $", "LOST $")


def costs(places: list[str], arguments: Namespace) -> int:
    """Print the sums by the deployment's price book. Return the exit status; blocks."""
    seen, own = run(listing(places)), deployment()
    runs = [(each, each.owner) for each in seen.runs if each.owner and each.owner.deployment == own]
    try:
        book = read_book(None)
    except ElasticError as error:
        book = None
        print_error(error)

    def bill_of(each: FoundRun, _owner: Owner) -> Bill | None:
        return bill(each.headline.usage, book) if book else None

    by = arguments.by
    found = spent(runs, bill_of, arguments.since, known_owners if by == "team" else no_owners)
    if arguments.json:
        print_json(plain_costs(found, by))
    elif arguments.csv:
        sys.stdout.write(as_csv(total_by(found, by), by))
    else:
        rows = [
            (each.name or "unknown", each.runs, *(f"{seconds / 3600:.2f}" for seconds in
             (each.trained_seconds, each.idle_seconds, each.lost_seconds)), each.cost, each.idle_cost, each.lost_cost)
            for each in (*total_by(found, by), total("all", found))
        ]  # fmt: skip
        print_table((by.upper(), *_HEAD), rows)
        if unpriced := sum(each.cost is None for each in found):
            print_line(f"{unpriced} of {len(found)} runs have no price: see docs/cost.md")
    return REFUSED if seen.unreachable else DONE
