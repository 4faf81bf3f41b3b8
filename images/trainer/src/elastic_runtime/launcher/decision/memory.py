"""How much memory a worker gets that ran out of it. Pure.

What is given holds for all workers that start later, too: ranks of one script need about the same, and a new worker
with the first limit would run out as well. So sizes grow in levels, and workers that run out at the same time get the
same level.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from elastic_runtime.kubernetes.quantities import quantity_of
from elastic_runtime.run.spec import RecoverySpec

MAX_LEVELS = 20
"""Times that the limit grows in a run."""
STEP = 2**20
"""Bytes. A limit is a multiple of it, unless it is ``up_to``."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker gets no more, so the run ends."""

    reason: str
    """For people, with a remedy."""


def decide_limit(worker: str, limit: int, given: Collection[int], recovery: RecoverySpec) -> int | Refused:
    """Return the limit in bytes that a worker gets after it ran out of memory.

    Args:
        worker: its name.
        limit: bytes that it had then.
        given: limits that were given in this run so far.
        recovery: with ``grow_memory`` and ``up_to``.
    """
    factor, most = recovery.grow_memory, recovery.up_to
    assert factor is not None
    assert most is not None
    if (level := max(given, default=0)) > limit:
        return level
    ran_out = f"{worker} ran out of memory at its limit of {quantity_of(limit)}"
    remedy = "give workers more, or have each rank need less, as with smaller batches or fewer processes that load data"
    if limit >= most:
        return Refused(f"{ran_out}, and recovery.up_to is {quantity_of(most)}: {remedy}")
    if len(set(given)) >= MAX_LEVELS:
        return Refused(f"{ran_out}, after the limit has grown {MAX_LEVELS} times: {remedy}")
    return min(most, math.ceil(limit * factor / STEP) * STEP)
