"""Workers that ran out of memory: what they get is decided, told, and given by the platform."""

from __future__ import annotations

from collections.abc import Collection

from elastic_runtime.kubernetes.quantities import quantity_of
from elastic_runtime.launcher.decision.memory import Refused, decide_limit
from elastic_runtime.launcher.platform import WorkerSet
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.worker_pool import WorkerPool
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind


class MemoryWatch:
    """Follow it. On a platform that knows no limit of its workers, nothing is done.

    Args:
        recovery: what was asked for.
        workers, pool, record: where limits are known and given; workers; where it is told.
    """

    def __init__(self, recovery: RecoverySpec, workers: WorkerSet, pool: WorkerPool, record: RunRecord) -> None:
        self._recovery, self._workers, self._pool, self._record = recovery, workers, pool, record
        self._explained = set[str]()
        self._answered = set[tuple[str, int]]()
        """Names of pods, each with the limit that it had then."""
        self.refused: str | None = None
        """Why a worker gets no more, for people; None: none is refused."""
        self._starved = set[str]()
        """Rank ids that have ended for want of memory since the last world was complete, whose workers get more."""

    def rank_ended(self, rank_id: str, worker: str) -> None:
        """A rank has failed, and the kernel has killed a process of its worker's container for want of memory."""
        if self._ran_out(WorkerName.parse(worker).pod):
            self._explained.add(rank_id)
            self._starved.add(rank_id)

    @property
    def starved(self) -> bool:
        """Return :attr:`.Facts.starved`."""
        return bool(self._starved)

    def explains(self, rank_id: str) -> bool:
        """Whether that rank has failed for want of memory that its worker gets now: said once."""
        known = rank_id in self._explained
        self._explained.discard(rank_id)
        return known

    def look(self) -> None:
        """Ask which workers have ended, and what limits there are."""
        for pod in self._workers.out_of_memory():
            self._ran_out(pod)
        for worker in self._pool.workers.values():
            worker.memory_limit = self._workers.memory_limit(worker.name)

    def new_world(self, ended: Collection[str]) -> None:
        """A world is complete, of whose members these have ended already: their agents were faster than others'."""
        self._starved.intersection_update(ended)
        self._explained.intersection_update(ended)

    def _ran_out(self, pod: str) -> bool:
        """Whether more is given."""
        limit = self._workers.memory_limit(pod)
        if limit is None:
            return False
        is_new = (pod, limit) not in self._answered
        self._answered.add((pod, limit))
        if self._recovery.grow_memory is None or not self._workers.can_give_memory():
            if is_new:
                remedy = "" if self._recovery.grow_memory else ". Give workers more, or set Recovery(grow_memory=...)"
                words = f"{pod} ran out of memory: its limit is {quantity_of(limit)}{remedy}"
                self._record.event(EventKind.WARNING, words, pod)
            return False
        wanted = decide_limit(pod, limit, self._record.memory_limits, self._recovery)
        if isinstance(wanted, Refused):
            self.refused = wanted.reason
            return False
        if is_new:
            self._record.memory_given(pod, limit, wanted)
            self._workers.give_memory(pod, wanted)
        return True
