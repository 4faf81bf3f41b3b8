"""Removing runs that are over for long, at a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ElasticError
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import cluster_called, own_name
from elastic_training.clusters.types import RunSummary
from elastic_training.console.command.finding import PLACE_TIMEOUT
from elastic_training.console.command.output import print_error, print_line, print_table, time_text
from elastic_training.identity.deployment import deployment
from elastic_training.identity.ownership import read_owner
from elastic_training.lifecycle.retention import Retention, outdated, remove


@dataclass(frozen=True, slots=True)
class Outdated:
    """Run that would be removed."""

    runs: tuple[tuple[str, Cluster, RunSummary], ...]
    """Place, cluster and run."""
    unreachable: bool = False
    """Whether a place has not answered."""


async def outdated_in(places: Sequence[str], retention: Retention, all_deployments: bool) -> Outdated:
    """Place by place; those that do not answer are complained of."""
    whose = None if all_deployments else deployment()
    found: list[tuple[str, Cluster, RunSummary]] = []
    unreachable = False
    for place in places:
        try:
            async with asyncio.timeout(PLACE_TIMEOUT):
                cluster = cluster_called(await asyncio.to_thread(own_name, place))
                runs = await cluster.list()
        except (ElasticError, TimeoutError) as error:
            print_error(f"{place}: {str(error) or f'it has not answered in {PLACE_TIMEOUT:g} s'}")
            unreachable = True
        else:
            found += [(place, cluster, each) for each in outdated(runs, whose, retention, utc_now())]
    return Outdated(tuple(found), unreachable)


def print_outdated(found: Outdated) -> None:
    """Print a table of the runs that a prune removes."""
    if not found.runs:
        print_line("nothing to remove")
        return
    rows = []
    for place, _, each in found.runs:
        head, owner = each.headline, read_owner(each.owner)
        task = f"{owner.dag_id}.{owner.task_id} {owner.run_id}" if owner else None
        rows.append((each.ref.name, place, head.phase, time_text(head.finished or head.updated), task))
    print_table(("NAME", "PLACE", "PHASE", "FINISHED", "TASK"), rows)


def confirmed(count: int) -> bool:
    """Whether whoever sits at the terminal wants that; blocks."""
    sys.stderr.write(f"Remove these {count} runs, with their logs? yes/no: ")
    sys.stderr.flush()
    return sys.stdin.readline(100).strip().lower() == "yes"


async def remove_all(runs: Sequence[tuple[str, Cluster, RunSummary]]) -> bool:
    """One after the other. Returns whether all are gone, or somebody's again."""
    good = True
    for place, cluster, each in runs:
        try:
            print_line(f"{each.ref.name} in {place} {await remove(cluster, each)}")
        except ElasticError as error:
            print_error(f"{each.ref.name} in {place}: {error}")
            good = False
    return good
