"""Workers in the status: those that are connected, and those that were."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from elastic_runtime.launcher.record.hardware import figures_of, with_few_gpus, without_figures_of
from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.run.status import (
    EARLIER_WORKERS,
    MAX_PAST_WORKERS,
    MAX_WORKER_SECONDS,
    Status,
    WorkerState,
    WorkerStatus,
)


class WorkersRecord:
    """Keeps since when each worker is in its state, and what is left to tell of those that are gone.

    Args:
        now: wall clock.
        previous: what the launcher before this one has published last; its workers are gone.
    """

    def __init__(self, now: Callable[[], datetime], previous: Status | None = None) -> None:
        self._now = now
        self._states: dict[str, tuple[WorkerState, datetime]] = {}
        self.past: deque[WorkerStatus] = deque(maxlen=MAX_PAST_WORKERS)
        """The newest of those that are gone, in the order in which they went."""
        self.past_seconds: dict[str, float] = {}
        """For which each of them was here; those before the newest under one name."""
        if previous is not None:
            self._continue(previous)

    def _continue(self, previous: Status) -> None:
        for worker in previous.workers:  # Whoever comes back does so under another name.
            changed = replace(worker, state=WorkerState.LOST, since=self._now(), ranks=())
            self.past.append(worker if worker.state.gone else without_figures_of(changed))
        self.past_seconds.update(previous.worker_seconds)

    def gone(self, worker: Worker, state: WorkerState) -> None:
        """A worker is not here any more."""
        past = self._told(worker, {}, state)
        self._states.pop(worker.name)
        self.past.append(replace(past, gpus=(), step_seconds=None, step_skew=None))
        self.past_seconds[worker.name] = past.seconds
        while len(self.past_seconds) > MAX_WORKER_SECONDS:
            first = next(name for name in self.past_seconds if name != EARLIER_WORKERS)
            earlier = self.past_seconds.get(EARLIER_WORKERS, 0.0) + self.past_seconds.pop(first)
            self.past_seconds[EARLIER_WORKERS] = earlier

    def present(self, workers: Iterable[Worker], ranks: Mapping[str, int]) -> list[WorkerStatus]:
        """Those that are here, in that order.

        Args:
            workers: that are here.
            ranks: rank by rank id, of the present world.
        """
        return [*with_few_gpus(self._told(worker, ranks, None) for worker in workers)]

    def _told(self, worker: Worker, ranks: Mapping[str, int], final: WorkerState | None) -> WorkerStatus:
        own = tuple(sorted(ranks[slot.rank_id] for slot in worker.slots if slot.rank_id in ranks))
        state = final or _state(worker, bool(own))
        if state is not self._states.get(worker.name, (None, None))[0]:
            self._states[worker.name] = (state, self._now())
        pids = (worker.connection.hello.pid, *(pid for pid in worker.ranks.values() if pid is not None))
        return WorkerStatus(
            name=worker.name,
            node=worker.connection.hello.node,
            state=state,
            since=self._states[worker.name][1],
            slots=len(worker.slots),
            ranks=own,
            pids=pids,
            seconds=(self._now() - worker.since).total_seconds(),
            capacity_type=worker.machine.capacity_type if worker.machine else None,
            memory_limit_bytes=worker.memory_limit,
            instance_type=worker.machine.instance_type if worker.machine else None,
            step_seconds=round(worker.pace.seconds, 6) if worker.pace else None,
            step_skew=round(worker.pace.skew, 2) if worker.pace else None,
            **figures_of(worker.beat),
        )


def _state(worker: Worker, training: bool) -> WorkerState:
    if worker.deadline is not None:
        return WorkerState.LEAVING
    if not worker.ready:
        return WorkerState.STARTING
    return WorkerState.TRAINING if training else WorkerState.READY
