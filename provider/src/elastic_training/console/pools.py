"""Standing pools of this machine, for the list of all runs: who has what, and why, as far as a person may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from elastic_runtime.errors import ElasticError
from elastic_runtime.pool.settings import MOST_WORKERS
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


def plain_pools(
    pools: Iterable[PoolStatus], seen: Mapping[str, Mapping[str, Any]], may_resize: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """As JSON.

    Args:
        pools: of this machine.
        seen: ids of the tasks of runs that the person may see, by the names of the runs. Others are counted, and no
            reason that may name them is told.
        may_resize: whether the person may change the pool of that name.
    """
    found = []
    for pool in pools:
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
            "name": settings.name,
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
