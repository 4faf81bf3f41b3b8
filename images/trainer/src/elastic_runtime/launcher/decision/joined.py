"""How many workers train where some join by hand: those that are asked for, and these besides, up to the most. Pure."""

from __future__ import annotations

from elastic_runtime.launcher.decision.facts import Facts
from elastic_runtime.run.spec import WorkersSpec


def total_wanted(wanted: int, joined: int, bounds: WorkersSpec) -> int:
    """Return the number of workers that are to train.

    Args:
        wanted: that are asked for.
        joined: that have joined, and do not leave.
        bounds: of the run.
    """
    return min(wanted + joined, max(wanted, bounds.maximum))


def wanted_with_joined(facts: Facts, bounds: WorkersSpec) -> int:
    """Return the same, of these facts."""
    return total_wanted(facts.wanted, sum(each.joined and not each.leaving for each in facts.workers), bounds)


def joined_ranks(facts: Facts) -> frozenset[str]:
    """Return the rank ids of workers that joined by hand."""
    return frozenset(slot.rank_id for worker in facts.workers if worker.joined for slot in worker.slots)
