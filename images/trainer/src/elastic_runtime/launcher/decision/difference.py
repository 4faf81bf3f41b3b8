"""Whether a rank does not do what the others do, though all train, and what follows; pure.

All ranks tell of the same commits what they have begun in their world. With ranks apart, gradients of different steps
are added up, so who differs is named and stopped, and the others go on from the last commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.deadlock import HINT
from elastic_runtime.launcher.decision.facts import Decision, DecisionSettings, Difference, EndDifference, Facts, Finish
from elastic_runtime.launcher.decision.first_apart import first_apart
from elastic_runtime.launcher.decision.standstill import consequence, listed, most
from elastic_runtime.protocol.tallies import Tally
from elastic_runtime.run.status import Phase

MOST_KINDS = 3
"""Kinds of collectives that a message names."""


@dataclass(frozen=True, slots=True)
class RankTally:
    """What a rank of the world has begun."""

    rank: int
    rank_id: str
    slot: str
    """Name of its place, which its replacement will have, too."""
    told: Tally


_FIELDS = ("step", "collectives", "order", "steps")
"""What is compared, in this order: a collective more also changes the order."""


def compare(ranks: Sequence[RankTally], agreed: Tally | None = None) -> Difference | None:
    """Find the ranks that differ from more than half of the ranks. If so many do not agree, none is at fault.

    Args:
        ranks: all of the world, at the same commit.
        agreed: what each rank has told of the last commit at which they did not differ. None: the world's begin.
    """
    for name in _FIELDS:
        values = [getattr(each.told, name) for each in ranks]
        if None in values or len(set(values)) == 1:
            continue
        usual = most(values, len(ranks))
        model = ranks[0] if usual is None else ranks[values.index(usual)]
        apart = [each for each in ranks if getattr(each.told, name) != getattr(model.told, name)]
        does = [_does(name, each, model, agreed or Tally(0)) for each in apart]
        told = listed([f"rank {rank.rank} ({rank.rank_id}) {words}" for rank, words in zip(apart, does, strict=True)])
        at_fault = apart if usual is not None else []
        return Difference(
            name,
            max((each.told.step for each in ranks if each.told.step is not None), default=None),
            tuple(each.rank for each in at_fault),
            tuple(each.rank_id for each in at_fault),
            tuple(each.slot for each in at_fault),
            f"by commit {model.told.commit} of this world, {told}",
        )
    return None


def _does(name: str, rank: RankTally, other: RankTally, agreed: Tally) -> str:
    """Return in what they differ."""
    mine, theirs, who = rank.told, other.told, f"rank {other.rank}"
    match name:
        case "step":
            return f"is at step {mine.step}, and {who} at step {theirs.step}"
        case "order":
            rest = f"has begun other collectives than {who}, or in another order"
        case "collectives":
            rest = f"has begun {mine.collectives} collectives, and {who} {theirs.collectives}"
        case _:
            return f"has made {mine.steps} steps of its optimizers, and {who} {theirs.steps}"
    if first := first_apart(mine, theirs, agreed, who):
        return f"{rest}: {first}"
    kinds = [kind for kind in {**theirs.kinds, **mine.kinds} if mine.kinds.get(kind, 0) != theirs.kinds.get(kind, 0)]
    told = [f"{mine.kinds.get(kind, 0)} and {theirs.kinds.get(kind, 0)} of {kind}" for kind in kinds[:MOST_KINDS]]
    return ": ".join([rest, *([", ".join(told)] if told else [])])


def decide_difference(facts: Facts, settings: DecisionSettings) -> Decision | None:
    """Return what follows from a difference. None: there is none, or nothing is to follow."""
    found = facts.difference
    if found is None or not settings.recovery.compare:
        return None
    if any(found.repeats(each) for each in facts.differences):
        reason = f"the ranks do not do the same for the second time: {found.why}. {HINT}"
        return Decision((Finish(Phase.FAILED, FailureKind.RANKS_DIFFER),), Phase.FAILED, reason)
    reason = f"the ranks do not do the same: {found.why}; {consequence(found.ranks)}"
    return Decision((EndDifference(found, reason),), Phase.RUNNING, reason)
