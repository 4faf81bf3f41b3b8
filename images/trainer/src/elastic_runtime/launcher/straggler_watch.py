"""Follows how long each worker's ranks work on a step, tells of those that hold the others back, and replaces them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

from elastic_runtime.launcher.decision.facts import DecisionSettings, Facts
from elastic_runtime.launcher.decision.stragglers import Sample, StragglerFacts, decide_stragglers, paces
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.standstills import Standstills
from elastic_runtime.launcher.worker_pool import Worker, WorkerPool
from elastic_runtime.protocol.rank_link import OwnTime
from elastic_runtime.run.spec import MOST_TOLD
from elastic_runtime.run.status import EventKind


class StragglerWatch:
    """Keep what the ranks of the present world tell.

    Args:
        settings: what was asked for.
        pool, record, standstills: workers; where it is told; what ranks are busy with.
        now: monotonic seconds.
    """

    def __init__(
        self,
        settings: DecisionSettings,
        pool: WorkerPool,
        record: RunRecord,
        standstills: Standstills,
        now: Callable[[], float],
    ) -> None:
        self._settings, self._now = settings, now
        self._pool, self._record, self._standstills = pool, record, standstills
        self._members: dict[str, deque[Sample]] = {}
        """By rank id."""
        self._due = now()
        self._told = set[str]()
        self._replaced: tuple[float, ...] = ()

    def new_world(self, members: Collection[str]) -> None:
        """A world of these is complete: what was told is of another."""
        self._members = {rank_id: deque(maxlen=2 * MOST_TOLD) for rank_id in members}
        for worker in self._pool.workers.values():
            worker.pace = None

    def said(self, rank_id: str, said: OwnTime) -> None:
        """A rank says so. What it tells of a time in which any rank was busy is not kept."""
        now = self._now()
        if rank_id in self._members and self._standstills.excused(self._members) <= now - said.seconds:
            self._members[rank_id].append(Sample(now, said.seconds, said.waited, said.steps))

    def look(self, facts: Facts, replace: Callable[[Worker], None]) -> None:
        """Compare the workers, if it is time to, and tell what follows.

        Args:
            facts: how things stand.
            replace: have this worker leave, as after a notice.
        """
        now, recovery = self._now(), self._settings.recovery
        if (every := recovery.tells_every) is None or now < self._due:
            return
        self._due = now + every
        samples = self._samples(now - recovery.window)
        found = paces(samples)
        for worker in self._pool.workers.values():
            worker.pace = found.get(worker.name)
        known = StragglerFacts(samples, self._told, self._replaced)
        for each in decide_stragglers(known, facts, self._settings, now):
            self._told.add(each.worker)
            self._record.event(EventKind.STRAGGLER, each.message, each.worker)
            if each.replace:
                self._replaced = (*self._replaced, now)
                replace(self._pool.workers[each.worker])

    def _samples(self, since: float) -> Mapping[str, list[list[Sample]]]:
        found: dict[str, list[list[Sample]]] = {}
        for rank_id, samples in self._members.items():
            if worker := self._pool.worker_of(rank_id):
                found.setdefault(worker.name, []).append([each for each in samples if each.end > since])
        return found
