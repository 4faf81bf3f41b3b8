"""When workers with a notice leave the world, pure: as late as they can, where it is known how long they are there."""

from __future__ import annotations

from elastic_runtime.launcher.decision.facts import DecisionSettings, Facts, WorkerFact
from elastic_runtime.run.waits import LEAVE_MARGIN, LEAVE_TOGETHER, TO_END


def staying(facts: Facts, settings: DecisionSettings, now: float) -> frozenset[str]:
    """Ranks that have a notice, and train on: their worker is there for longer than they need to leave.

    Only those that are listed: who has been asked to leave is not called back.
    """
    listed = frozenset(facts.session.listed) if facts.session else frozenset()
    moments = {
        rank_id: moment
        for worker in facts.workers
        if (moment := _leaves_at(worker, facts, settings)) is not None
        for rank_id in listed.intersection(slot.rank_id for slot in worker.slots)
    }
    until = now + LEAVE_TOGETHER if any(moment <= now for moment in moments.values()) else now
    return frozenset(rank_id for rank_id, moment in moments.items() if moment > until)


def _leaves_at(worker: WorkerFact, facts: Facts, settings: DecisionSettings) -> float | None:
    """When its ranks are to leave; None: at once, or no notice says so."""
    restarts = facts.session is not None and facts.session.restarts
    needed = _to_write(settings) if restarts else facts.leave_time
    if worker.gone_at is None or not worker.punctual or needed is None:
        return None
    return worker.gone_at - needed - LEAVE_MARGIN


def ranks_due(facts: Facts, settings: DecisionSettings, now: float) -> frozenset[str]:
    """Ranks whose worker will be taken so soon that they have to write the script's own checkpoint now."""
    if facts.session is None or not facts.session.restarts:
        return frozenset()
    soon = now + _to_write(settings)
    taken = [worker for worker in facts.workers if worker.gone_at is not None and worker.gone_at <= soon]
    return frozenset(slot.rank_id for worker in taken for slot in worker.slots)


def _to_write(settings: DecisionSettings) -> float:
    """Seconds in which ranks write the script's own checkpoint, and end."""
    return settings.restart_grace + TO_END
