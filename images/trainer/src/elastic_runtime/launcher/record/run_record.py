"""What has happened in a run so far, and its status document made from it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from elastic_runtime import rank_link
from elastic_runtime.engines.exits import describe
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.record.figures import Figures
from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.printable import printable
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import (
    EARLIER_WORKERS,
    MAX_EVENTS,
    MAX_HISTORY,
    MAX_MESSAGE,
    MAX_PAST_WORKERS,
    MAX_REASON,
    MAX_SIZES_ASKED,
    MAX_WORKER_SECONDS,
    Checkpoint,
    Event,
    EventKind,
    FailureKind,
    Phase,
    SizeAsked,
    Status,
    WorkerState,
    WorkerStatus,
    World,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Standing:
    """The scalar part of the status."""

    phase: Phase = Phase.STARTING
    reason: str = "the launcher has started"
    started: datetime | None = None
    finished: datetime | None = None
    failure: FailureKind | None = None
    world_size: int = 0
    generation: int = 0
    step: int | None = None
    checkpoint: Checkpoint | None = None


class RunRecord:
    """Keeps what the status tells.

    Args:
        spec: of the run.
        now: wall clock.
        previous: what the launcher before this one has published last; its story is continued.
    """

    def __init__(self, spec: RunSpec, now: Callable[[], datetime], previous: Status | None = None) -> None:
        self._spec, self._now = spec, now
        self._standing = _Standing()
        self._figures = Figures(previous)
        self._asked: deque[SizeAsked] = deque(maxlen=MAX_SIZES_ASKED)
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._history: deque[World] = deque(maxlen=MAX_HISTORY)
        self._past: deque[WorkerStatus] = deque(maxlen=MAX_PAST_WORKERS)
        self._past_seconds: dict[str, float] = {}
        self._states: dict[str, tuple[WorkerState, datetime]] = {}
        self._exit_code: int | None = None
        self._blame_next = True
        """No rank has failed yet since the last world was complete."""
        self.rank_failures = self.forced_resets = 0
        """See :class:`~elastic_runtime.status.Status`."""
        if previous is not None:
            self._continue(previous)

    def _continue(self, previous: Status) -> None:
        self._standing = _Standing(
            phase=previous.phase,
            reason=previous.reason,
            started=previous.started,
            world_size=previous.world_size,
            generation=previous.generation,
            step=previous.step,
            checkpoint=previous.checkpoint,
        )
        self._asked.extend(previous.asked)
        self._events.extend(previous.events)
        self._history.extend(previous.history)
        for worker in previous.workers:  # Whoever comes back does so under another name.
            gone = worker.state in (WorkerState.LEFT, WorkerState.LOST)
            changed = replace(worker, state=WorkerState.LOST, since=self._now(), ranks=(), cpu_percent=None)
            self._past.append(worker if gone else changed)
        self._past_seconds.update(previous.worker_seconds)
        self.rank_failures, self.forced_resets = previous.rank_failures, previous.forced_resets
        self.event(EventKind.RESTARTED, "a new launcher has taken over")

    @property
    def generation(self) -> int:
        """Worlds so far."""
        return self._standing.generation

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest durable one."""
        return self._standing.checkpoint

    @property
    def trained(self) -> bool:
        """Whether there has ever been a world, of this launcher or one before."""
        return self._standing.started is not None

    def event(
        self,
        kind: EventKind,
        message: str,
        worker: str | None = None,
        world_size: int | None = None,
        step: int | None = None,
    ) -> None:
        """Note it, and write it to the log. ``step``: that it is about; the last one heard of unless given."""
        step, short = self._standing.step if step is None else step, printable(message, MAX_MESSAGE)
        self._events.append(Event(self._now(), kind, short, worker, step, world_size))
        log.info("%s: %s", kind, printable(message, MAX_REASON))

    def stand(self, phase: Phase, reason: str) -> None:
        """The run stands like this now. An end is told by :meth:`finish`, when nothing runs any more."""
        if phase.final:
            return
        before = self._standing.phase
        self._standing.phase, self._standing.reason = phase, printable(reason, MAX_REASON)
        if before is phase:
            return
        if phase is Phase.SUSPENDED:
            self.event(EventKind.SUSPENDED, reason)
        elif before is Phase.SUSPENDED and phase is Phase.RUNNING:
            self.event(EventKind.RESUMED, reason)

    def finish(self, phase: Phase, reason: str, failure: FailureKind | None) -> None:
        """The run is over."""
        self._standing.phase, self._standing.failure = phase, failure
        self._standing.reason = printable(reason, MAX_REASON)
        self._standing.finished = self._now()
        self.event(EventKind.FINISHED, f"{phase}: {reason}")

    def world(self, members: list[str]) -> None:
        """A new world is complete."""
        standing, size = self._standing, len(members)
        kind = EventKind.SCALED if standing.started else EventKind.STARTED
        standing.started = standing.started or self._now()
        standing.generation += 1
        standing.world_size = size
        self._blame_next = True
        self._history.append(World(self._now(), size, standing.generation, standing.step))
        self.event(kind, f"world {standing.generation} of {size} ranks: {', '.join(members)}", world_size=size)

    def rank_failed(self, rank_id: str, code: int, worker: str) -> None:
        """A rank has ended by itself, with another code than 0."""
        self.rank_failures += 1
        if self._blame_next:  # The others of its world may fail for its sake.
            self._blame_next, self._exit_code = False, code
        self.event(EventKind.RANK_FAILED, f"rank {rank_id} ended with {describe(code)}", worker)

    def no_world(self) -> None:
        """Nobody trains any more."""
        if self._standing.world_size:
            self._standing.world_size = 0
            self._history.append(World(self._now(), 0, self._standing.generation, self._standing.step))

    def rank_said(self, message: rank_link.RankMessage, worker: str) -> None:
        """A rank told us something. Raises InvalidDocument for a checkpoint that is not in the run's store."""
        standing = self._standing
        match message:
            case rank_link.Progress(step):
                standing.step = step
                self._figures.progress(step, self._now())
            case rank_link.Metrics(values, at):
                self._figures.report(values, standing.step if at is None else at, self._now())
            case rank_link.CheckpointWritten(uri, step, time, handover, seconds):
                self._check_own(uri)
                standing.checkpoint = Checkpoint(uri, step, time)
                standing.step = max(step, standing.step or 0)  # Progress is told a few times a second only.
                kind = EventKind.HANDOVER if handover else EventKind.CHECKPOINT
                self.event(kind, f"durable checkpoint of step {step} at {uri} in {seconds:.2f} s", worker, step=step)
            case rank_link.CheckpointFailed(step, reason):
                words = f"durable checkpoint of step {step} FAILED: {reason}"
                self.event(EventKind.CHECKPOINT, words, worker, step=step)
            case rank_link.CheckpointSkipped(uri, reason):
                self.event(EventKind.CHECKPOINT_SKIPPED, f"{uri} is not used: {reason}", worker)
            case rank_link.Resumed(uri, step):
                standing.step = step
                self._figures.go_back(step)
                self.event(EventKind.RESUMED, f"from the durable checkpoint of step {step} at {uri}", worker)

    def _check_own(self, uri: str) -> None:
        """The tasks that follow load what the status names."""
        store = self._spec.checkpoint
        if store is not None and uri.rpartition("/")[0] != store.uri.rstrip("/"):
            raise InvalidDocument(f"uri: {printable(uri, 60)!r} is not in the checkpoint store of this run")

    def gone(self, worker: Worker, state: WorkerState) -> None:
        """A worker is not here any more."""
        seconds = (self._now() - worker.since).total_seconds()
        self._past_seconds[worker.name] = seconds
        while len(self._past_seconds) > MAX_WORKER_SECONDS:
            first = next(name for name in self._past_seconds if name != EARLIER_WORKERS)
            earlier = self._past_seconds.get(EARLIER_WORKERS, 0.0) + self._past_seconds.pop(first)
            self._past_seconds[EARLIER_WORKERS] = earlier
        self._states.pop(worker.name, None)
        past = self._worker_status(worker, {}, state)
        self._past.append(replace(past, ranks=(), seconds=seconds))

    def status(self, workers: Iterable[Worker], ranks: Mapping[str, int], wanted: int) -> Status:
        """The document, as of now.

        Args:
            workers: that are here.
            ranks: rank by rank id, of the present world.
            wanted: workers asked for.
        """
        present = [self._worker_status(worker, ranks, None) for worker in workers]
        if not self._asked or self._asked[-1].workers != wanted:
            self._asked.append(SizeAsked(self._now(), wanted))
        standing = self._standing
        return Status(
            run=self._spec.name,
            uid=self._spec.uid,
            phase=standing.phase,
            reason=standing.reason,
            updated=self._now(),
            started=standing.started,
            finished=standing.finished,
            failure=standing.failure,
            exit_code=self._exit_code if standing.failure is FailureKind.RANK_FAILED else None,
            world_size=standing.world_size,
            target_size=wanted,
            generation=standing.generation,
            step=standing.step,
            metrics=dict(self._figures.metrics),
            series=self._figures.series,
            throughput=self._figures.throughput,
            workers=(*self._past, *present),
            events=tuple(self._events),
            checkpoint=standing.checkpoint,
            history=tuple(self._history),
            asked=tuple(self._asked),
            worker_seconds=self._past_seconds | {worker.name: worker.seconds for worker in present},
            rank_failures=self.rank_failures,
            forced_resets=self.forced_resets,
        )

    def _worker_status(self, worker: Worker, ranks: Mapping[str, int], final: WorkerState | None) -> WorkerStatus:
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
            cpu_percent=worker.cpu_percent,
            memory_bytes=worker.memory_bytes,
            capacity_type=worker.machine.capacity_type if worker.machine else None,
            instance_type=worker.machine.instance_type if worker.machine else None,
        )


def _state(worker: Worker, training: bool) -> WorkerState:
    if worker.deadline is not None:
        return WorkerState.LEAVING
    if not worker.ready:
        return WorkerState.STARTING
    return WorkerState.TRAINING if training else WorkerState.READY
