"""Who replays a trace: our launcher in both of its modes, and what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise

from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.rehearsal.policy import Job, Policy
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.trace import Trace
from elastic_runtime.run.spec import RecoveryMode


class PolicyName(StrEnum):
    """Keys of the results."""

    ELASTIC = "elastic"
    """Ours, ``Recovery(mode="elastic")``: with whatever is there between minimum and maximum."""
    FIXED = "fixed"
    """Ours, ``Recovery(mode="fixed")``: with exactly so many, the best number in hindsight; others are to spare."""
    STOCK = "stock"
    """Elastic Horovod by itself: the same worlds at its own costs; it hears no notice."""
    RESTART = "restart"
    """Horovod without elasticity: on every change all ranks end, and start again from the newest durable checkpoint."""


def policies(ours: Costs, peer: Costs) -> Mapping[PolicyName, Policy]:
    """All of them, with the costs of either side."""
    return {
        PolicyName.ELASTIC: Policy(ours),
        PolicyName.FIXED: Policy(ours, RecoveryMode.FIXED),
        PolicyName.STOCK: Policy(peer, listens=False),
        PolicyName.RESTART: Policy(peer, listens=False, in_place=False, gather=0.0),
    }


def best_fixed_size(trace: Trace, minimum: int, scaling: Scaling) -> int:
    """The number of workers that would have trained most, had they trained whenever there were that many."""
    levels = [*trace.levels(), (trace.duration, 0)]
    seconds = [(count, end - begin) for (begin, count), (end, _) in pairwise(levels)]

    def trained(size: int) -> float:
        return scaling.rate(size) * sum(length for count, length in seconds if count >= size)

    return max(range(minimum, max(trace.peak, minimum) + 1), key=trained)


def job_for(
    trace: Trace, *, minimum: int | None = None, maximum: int | None = None, scaling: Scaling | None = None
) -> Job:
    """Of the size of the trace: at most as many workers as it ever has machines, at least a quarter of that."""
    scaling = scaling or Scaling()
    maximum = maximum or trace.peak
    minimum = minimum or max(1, maximum // 4)
    return Job(minimum, maximum, min(best_fixed_size(trace, minimum, scaling), maximum), scaling=scaling)
