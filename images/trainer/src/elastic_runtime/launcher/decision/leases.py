"""Whether a rank has had a shard for longer than its lease, and what follows; pure.

It is stopped, so that others get what it has. Its world ends with it, so nothing that it says later counts.
"""

from __future__ import annotations

from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import (
    Decision,
    DecisionSettings,
    EndStandstill,
    Facts,
    Finish,
    GiveUpWorker,
    Stall,
)
from elastic_runtime.launcher.decision.shard_queues import Lease
from elastic_runtime.launcher.decision.standstill import consequence, listed
from elastic_runtime.protocol.rank_names import RankName
from elastic_runtime.run.status import Phase

HINT = "If a shard takes longer, raise Shards(lease=…), or call renew() while it is trained on"


def decide_leases(facts: Facts, settings: DecisionSettings, now: float) -> Decision | None:
    """Return what follows from leases that are over. None: there are none.

    Args:
        facts: how things stand.
        settings: what was asked for.
        now: seconds of the same clock as all times.
    """
    leases = sorted(facts.leases, key=lambda each: each.rank_id)
    grace = settings.timing.stop_grace + settings.timing.forming
    if stuck := [each for each in leases if each.stopped is not None and now - each.stopped > grace]:
        workers = sorted({str(_name(each).worker) for each in stuck})
        why = "its rank has had a shard for longer than its lease, and does not end"
        return Decision(tuple(GiveUpWorker(name, why) for name in workers), Phase.RUNNING, _told(stuck, now))
    late = [each for each in leases if each.stopped is None and now - each.renewed > each.seconds]
    if not late:
        return None
    stall = Stall(max(each.step for each in late), slots=tuple(_name(each).lasting_slot for each in late))
    if any(stall.repeats(each) for each in facts.stalls):
        reason = f"the training stands still at step {stall.step} for the second time: {_told(late, now)}. {HINT}"
        return Decision((Finish(Phase.FAILED, FailureKind.STANDSTILL),), Phase.FAILED, reason)
    reason = f"{_told(late, now)}; {consequence(late)}"
    return Decision((EndStandstill(stall, tuple(each.rank_id for each in late), reason),), Phase.RUNNING, reason)


def _name(lease: Lease) -> RankName:
    return RankName.parse(lease.rank_id)


def _told(late: list[Lease], now: float) -> str:
    return listed(
        [
            f"rank {each.rank_id} has had a shard of step {each.step} for {now - each.renewed:.0f} s, "
            f"and its lease was of {each.seconds:.0f} s"
            for each in late
        ]
    )
