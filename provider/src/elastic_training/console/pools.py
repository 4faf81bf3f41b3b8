"""Standing pools of this machine, for the list of all runs: who has what, and why, as far as a person may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from elastic_runtime.errors import ElasticError
from elastic_runtime.pool.status import PoolStatus
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.pool import list_pools, notebook_address
from elastic_training.clusters.registry import local_settings
from elastic_training.console import asking
from elastic_training.redaction.values import masked


async def pools_here(places: Sequence[str], max_wait: float) -> tuple[PoolStatus, ...]:
    """Return the pools of this machine, if it is one of the places; none where they cannot be read in time.

    Args:
        places: names of clusters.
        max_wait: seconds.
    """
    if LOCAL not in places:
        return ()
    try:
        async with asyncio.timeout(max_wait):
            return await asking.SLOTS.in_daemon(_read)
    except (ElasticError, OSError, TimeoutError):  # The runs of that place are told to be out of reach.
        return ()


def _read() -> tuple[PoolStatus, ...]:
    return tuple(status for status, _ in list_pools(local_settings()[0]))


def plain_pools(pools: Iterable[PoolStatus], seen: Collection[str]) -> list[dict[str, Any]]:
    """As JSON.

    Args:
        pools: of this machine.
        seen: names of runs that the person may see. Others are counted, and no reason that may name them is told.
    """
    found = []
    for pool in pools:
        known = [each for each in pool.runs if each.run in seen]
        whole = len(known) == len(pool.runs)
        rows = [
            {
                "run": each.run,
                "priority": each.priority,
                "has": each.has,
                "wanted": each.wanted,
                "reason": masked(each.reason) if whole else "",
            }
            for each in known
        ]
        others = sum(each.has for each in pool.runs if each.run not in seen)
        most = pool.settings.maximum
        row = {"name": pool.settings.name, "most": most, "free": pool.free, "others": others, "runs": rows}
        found.append({**row, "notebook": notebook_address(pool.settings)})
    return found
