"""Standing pools, for the list of all runs: who has what, and why, as far as a person may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.pool.settings import MOST_WORKERS
from elastic_runtime.pool.status import PoolStatus
from elastic_training.clusters.kubernetes.pools import NamespacePools
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.pool import list_pools, notebook_address
from elastic_training.clusters.registry import has_pods, local_settings, own_name, place_of, split_name
from elastic_training.console import asking
from elastic_training.redaction.values import masked


@dataclass(frozen=True, slots=True)
class FoundPool:
    """A pool in its place."""

    name: str
    """``NAME``, or ``NAME@CLUSTER`` of a pool in pods, as in the name of a cluster."""
    status: PoolStatus


async def pools_in(places: Sequence[str], max_wait: float) -> tuple[FoundPool, ...]:
    """Return the pools of this machine, if it is one of the places, and those in pods.

    Places that cannot be read in time have none here: their runs are reported to be out of reach.

    Args:
        places: names of clusters.
        max_wait: seconds for each.
    """
    found = await asyncio.gather(*(_in_time(place, max_wait) for place in places))
    return tuple({each.name: each for one in found for each in one}.values())


async def _in_time(place: str, max_wait: float) -> Iterable[FoundPool]:
    try:
        with asking.OUTAGES.asking(asking.of_place(place)):
            async with asyncio.timeout(max_wait):
                return await _pools_in(place)
    except Exception:  # noqa: BLE001  # of Airflow's database, too, where connections are: one place's
        return ()


async def _pools_in(place: str) -> Iterable[FoundPool]:
    if place == LOCAL:
        return [FoundPool(each.settings.name, each) for each in await asking.SLOTS.in_daemon(_read)]
    if not has_pods(name := await asking.SLOTS.in_daemon(own_name, place)):
        return ()
    found = await NamespacePools(*split_name(name)).list()
    return [FoundPool(f"{each.settings.name}@{place_of(place)}", each) for each, _ in found]


def _read() -> tuple[PoolStatus, ...]:
    return tuple(status for status, _ in list_pools(local_settings()[0]))


def plain_pools(
    pools: Iterable[FoundPool], seen: Mapping[str, Mapping[str, Any]], may_resize: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """As JSON.

    Args:
        pools: of all places.
        seen: ids of the tasks of runs that the person may see, by the names of the runs. Others are counted, and no
            reason that may name them is told.
        may_resize: whether the person may change the pool of that name.
    """
    found = []
    for each_pool in pools:
        pool = each_pool.status
        known = [each for each in pool.runs if each.run in seen]
        whole = len(known) == len(pool.runs)
        rows = [
            {
                **seen[each.run],
                "run": each.run,
                "priority": each.priority,
                "has": each.has,
                "wanted": each.wanted,
                "reason": masked(each.reason) if whole else "",
            }
            for each in known
        ]
        settings = pool.settings
        row = {
            "name": each_pool.name,
            "least": max(1, settings.minimum),
            "most": settings.maximum,
            "largest": MOST_WORKERS,
            "free": pool.free,
            "others": sum(each.has for each in pool.runs if each.run not in seen),
            "runs": rows,
            "notebook": notebook_address(settings),
            "may_edit": may_resize(settings.name),
        }
        found.append(row)
    return found
