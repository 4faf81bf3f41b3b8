"""Record of a run so far, and its status document."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from elastic_runtime.engines.base import HOW_TO_JOIN
from elastic_runtime.engines.exits import describe
from elastic_runtime.errors import FailureKind, InvalidDocument
from elastic_runtime.kubernetes.quantities import quantity_of
from elastic_runtime.launcher.decision.facts import PauseFact
from elastic_runtime.launcher.decision.joined import total_wanted
from elastic_runtime.launcher.decision.sizing import SizeWish
from elastic_runtime.launcher.record.failures import Failures
from elastic_runtime.launcher.record.figures import Figures
from elastic_runtime.launcher.record.hardware import HardwareRecord
from elastic_runtime.launcher.record.lives import Lives
from elastic_runtime.launcher.record.lost_time import LostSeconds
from elastic_runtime.launcher.record.machine_time import MachineTime
from elastic_runtime.launcher.record.misuse import AGAIN, LOCAL_RANK, STATIC, UNJOINED, UNJOINED_ELSEWHERE
from elastic_runtime.launcher.record.output import CheckpointLines
from elastic_runtime.launcher.record.progress import ProgressRecord, Sizes, leaving_ranks
from elastic_runtime.launcher.record.tracebacks import expects_torchrun, tells_of_torn_file
from elastic_runtime.launcher.record.workers import WorkersRecord
from elastic_runtime.launcher.stops import Stopped, overdue_message, unhandled_message
from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.printable import printable
from elastic_runtime.protocol import rank_link
from elastic_runtime.protocol.wire import Heartbeat, Hello
from elastic_runtime.run.join import HOW_TO_NAME
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import (
    MAX_EVENTS,
    MAX_HISTORY,
    MAX_MEMORY,
    MAX_MESSAGE,
    MAX_REASON,
    MAX_SIZES_ASKED,
    Checkpoint,
    Event,
    EventKind,
    MemoryGiven,
    Outputs,
    Pause,
    Phase,
    SizeAsked,
    Status,
    WorkerState,
    World,
)
from elastic_runtime.run.status_progress import Progress
from elastic_runtime.tracing.traces import outputs_folder

log = logging.getLogger(__name__)

_WAITS = (Phase.SUSPENDED, Phase.PAUSED)
_TROUBLE = (EventKind.NOTICE, EventKind.LOST, EventKind.RANK_FAILED, EventKind.SUSPENDED, EventKind.CHECKPOINT_SKIPPED)
_WARNED = (*_TROUBLE, EventKind.STANDSTILL, EventKind.STRAGGLER, EventKind.RANKS_DIFFER, EventKind.WARNING)
_LEVELS = dict.fromkeys(_WARNED, logging.WARNING) | {EventKind.LEFT: logging.DEBUG}
"""Of events in the log. That a worker has left follows from the world before, or from the end of the run."""
MOST_MEMBERS = 8
"""Ranks of a world that are named in its event."""


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
    returned: str | None = None
    outputs: Outputs | None = None
    pause: Pause | None = None


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
        self._machine_time = MachineTime(previous)
        self._hardware = HardwareRecord(previous)
        self._lost = LostSeconds(now(), previous)
        self._progress = ProgressRecord(spec, now(), self._warn_once, previous)
        self.time_left: Progress | None = None
        """Progress of the newest status. None: the script has not told how many steps it has."""
        self.worker_seconds = 0.0
        """Of all workers, present and past, as of the newest status."""
        self._asked: deque[SizeAsked] = deque(maxlen=MAX_SIZES_ASKED)
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._history: deque[World] = deque(maxlen=MAX_HISTORY)
        self._memory: deque[MemoryGiven] = deque(maxlen=MAX_MEMORY)
        self._workers = WorkersRecord(now, previous)
        self._checkpoint_lines = CheckpointLines(now)
        self.failures = Failures(now)
        """What ranks say when they fail."""
        self.lives = Lives()
        """Whether a script that is started anew goes on."""
        self._world_began: datetime | None = None
        """When the present world was complete, until it has told of a step."""
        self._told_unhandled = self._cut = False
        self._named_elsewhere = False
        self._warned = {event.message for event in previous.events} if previous is not None else set()
        self._starts = 0
        self._resumes = previous is not None and previous.phase is Phase.PAUSED
        """The next world is the first after a pause."""
        self._has_checkpoint = previous is not None and previous.checkpoint is not None
        self.rank_failures = self.forced_resets = 0
        """Counters of :class:`~elastic_runtime.run.status.Status`."""
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
            returned=previous.returned,
            outputs=previous.outputs,
            pause=previous.pause,
        )
        self._asked.extend(previous.asked)
        self._events.extend(previous.events)
        self._history.extend(previous.history)
        self._memory.extend(previous.memory)
        self.rank_failures, self.forced_resets = previous.rank_failures, previous.forced_resets
        self._starts = previous.starts
        self.event(EventKind.RESTARTED, "a new launcher has taken over")

    @property
    def progress(self) -> tuple[int | None, Mapping[str, float], float | None, int, Progress | None]:
        """Newest step, newest value of each metric, newest steps a second, ranks that train, and :attr:`time_left`."""
        rates = self._figures.throughput.values
        standing = self._standing
        return standing.step, self._figures.metrics, rates[-1] if rates else None, standing.world_size, self.time_left

    @property
    def estimates(self) -> ProgressRecord:
        """The progress of the newest status, for estimates with other sizes."""
        return self._progress

    @property
    def step(self) -> int | None:
        """The newest that ranks have told."""
        return self._standing.step

    @property
    def generation(self) -> int:
        """Return the number of worlds so far."""
        return self._standing.generation

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Newest checkpoint that is complete in the store. None: none is yet."""
        return self._standing.checkpoint

    @property
    def news(self) -> object:
        """Value that changes with every event of the run, but not with its figures. Compare it to detect news."""
        standing = self._standing
        last = self._events[-1] if self._events else None
        return standing.phase, standing.reason, standing.world_size, standing.generation, standing.returned, last

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
        *,
        logged: bool = True,
        level: int | None = None,
    ) -> None:
        """Note it, and write it to the log, unless ``logged`` says no; ``level``: another than the kind's own.

        ``step``: that it is about; the last one heard of unless given.
        """
        step, short = self._standing.step if step is None else step, printable(message, MAX_MESSAGE)
        self._events.append(Event(self._now(), kind, short, worker, step, world_size))
        if not logged:
            return
        if level is None:
            failed = kind is EventKind.FINISHED and self._standing.phase is Phase.FAILED
            level = logging.ERROR if failed else _LEVELS.get(kind, logging.INFO)
        store = f"{self._spec.checkpoint.uri.rstrip('/')}/" if self._spec.checkpoint else ""
        words = message.replace(store, "") if store else message
        log.log(level, "%s: %s", kind, printable(words, MAX_REASON))

    def stand(self, phase: Phase, reason: str) -> None:
        """The run stands like this now. An end is told by :meth:`finish`, when nothing runs any more."""
        if phase.final:
            return
        self._lost.stands(phase, self._now())
        before = self._standing.phase
        self._standing.phase, self._standing.reason = phase, printable(reason, MAX_REASON)
        if before is phase:
            return
        if phase is Phase.PAUSED:
            self._resumes = True
            if (pause := self._standing.pause) and pause.since is None:
                self._standing.pause = replace(pause, since=self._now())
            self.event(EventKind.PAUSED, reason)
        elif phase is Phase.SUSPENDED and before is not Phase.PAUSED:
            self.event(EventKind.SUSPENDED, reason)
        elif before in _WAITS and phase is Phase.RUNNING:
            self.event(EventKind.RESUMED, reason)

    @property
    def is_paused(self) -> bool:
        """Whether no worker is asked for."""
        return self._standing.phase is Phase.PAUSED

    def asked_to_pause(self, wish: SizeWish | None) -> None:
        """A pause is asked for; None: none is. One that was refused is told of until there is another."""
        before = self._standing.pause
        if wish is not None:
            since = before.since if before and not before.refused else None
            self._standing.pause = Pause(wish.name, wish.by, wish.workers, since)
        elif before is not None and not before.refused:
            self._standing.pause = None

    def pause_refused(self, reason: str) -> None:
        """The pause that is asked for cannot be."""
        if self._standing.pause is not None:
            self._standing.pause = replace(self._standing.pause, refused=reason)
        self.event(EventKind.WARNING, f"the run is not paused, and goes on: {reason}")

    def pause_fact(self) -> PauseFact | None:
        """Return the pause that is asked for, for the decision."""
        pause = self._standing.pause
        if pause is None or pause.refused:
            return None
        now = self._now()
        since = pause.since or now
        words = f"paused{f' by {pause.by}' if pause.by else ''} since {since:%Y-%m-%d %H:%M:%S}Z"
        return PauseFact(words, max(0.0, (now - since).total_seconds()))

    def finish(self, phase: Phase, reason: str, failure: FailureKind | None) -> None:
        """Record the end of the run, with its final phase and the kind of failure, if it failed."""
        self._lost.ended(self._now())
        self._standing.phase, self._standing.failure = phase, failure
        self._standing.reason = printable(reason, MAX_REASON)
        self._standing.finished = self._now()
        self.event(EventKind.FINISHED, f"{phase}: {reason}")

    def world(self, members: list[str]) -> None:
        """Record that all members of a new world are connected, and it trains."""
        standing, size = self._standing, len(members)
        self._lost.world_complete(self._now())
        self._world_began = self._now()
        kind = EventKind.SCALED if standing.started else EventKind.STARTED
        standing.started = standing.started or self._now()
        standing.generation += 1
        standing.world_size = size
        self._progress.world(size)
        self._resumes = False
        self.failures.world()
        self.lives.world_complete()
        self._history.append(World(self._now(), size, standing.generation, standing.step))
        more = f" and {size - MOST_MEMBERS} more" if size > MOST_MEMBERS else ""
        who = f"{', '.join(members[:MOST_MEMBERS])}{more}"
        self.event(kind, f"world {standing.generation} of {size} ranks: {who}", world_size=size)

    def rank_failed(self, rank_id: str, code: int, worker: str, rank: int | None = None) -> None:
        """A rank, whose number in its world that was, has ended by itself, with another code than 0."""
        self.rank_failures += 1
        self.failures.failed(rank_id, code, worker, rank, self._standing.step)
        self.event(EventKind.RANK_FAILED, f"rank {rank_id} ended with {describe(code)}", worker)

    @property
    def memory_limits(self) -> set[int]:
        """Limits in bytes that workers were given, other than their first."""
        return {each.after for each in self._memory}

    def memory_given(self, worker: str, before: int, after: int) -> None:
        """A worker ran out of memory at its limit of so many bytes, and gets another."""
        step = self._standing.step
        self._memory.append(MemoryGiven(self._now(), worker, before, after, step))
        sizes = f"{quantity_of(before)} -> {quantity_of(after)}"
        at = "" if step is None else f" at step {step}"
        words = f"{worker}: {sizes} after it ran out of memory{at}"
        self.event(EventKind.MEMORY, words, worker, level=logging.WARNING)

    def local_rank_read(self) -> None:
        """A script has read a number that is 0 in several ranks of a host."""
        self._warn_once(LOCAL_RANK)

    def trains_unjoined(self) -> None:
        """A rank trains, but is in no world."""
        self._warn_once(UNJOINED.get(self._spec.engine, UNJOINED_ELSEWHERE))

    def named_elsewhere(self, worker: str, hello: Hello, named: str) -> None:
        """Warn, once a run, that the name of a worker's machine does not resolve to the address of its ranks."""
        if not self._named_elsewhere:
            self._named_elsewhere = True
            problem = f"whose name resolves to {named or 'nothing'}, not to {hello.address}, the address of its ranks"
            self._warn_once(f"{worker} is on {hello.node}, {problem}. {HOW_TO_NAME}")

    def trains_static(self) -> None:
        """The script has no elastic state."""
        self._warn_once(STATIC)

    def trains_again(self) -> None:
        """The script calls a second training function."""
        self._warn_once(AGAIN)

    def _warn_once(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            self.event(EventKind.WARNING, words)

    @property
    def advice(self) -> str:
        """Return advice about the first failure, if there is any.

        A script that expects torchrun; or a file that is incomplete, where a rank was ended in the midst of its work.
        """
        first = self.failures.first
        if first and expects_torchrun(first.message):
            return f". {HOW_TO_JOIN}"
        if not (self._cut and first and tells_of_torn_file(f"{first.message}\n{first.traceback}")):
            return ""
        return (
            "; a rank was ended while it may have written that file: have the script write to a temporary name, and "
            "os.replace() it when it is whole"
        )

    def disturbed(self) -> None:
        """A rank of the world is lost, with its worker or by itself."""
        self._cut = True
        self._lost.disturbed(self._now())

    def beat(self, worker: str, beat: Heartbeat) -> None:
        """A heartbeat of a worker that is here."""
        self._hardware.heard(worker, beat, self._now())

    def no_world(self) -> None:
        """Record that no rank trains: the world has ended. Does nothing if there was no world."""
        if self._standing.world_size:
            self._lost.world_over(self._now())
            self._progress.world(0)
            self._standing.world_size = 0
            self._history.append(World(self._now(), 0, self._standing.generation, self._standing.step))

    def rank_said(self, message: rank_link.RankMessage, worker: str) -> None:
        """A rank told us something. Raises InvalidDocument for a checkpoint that is not in the run's store."""
        standing = self._standing
        match message:
            case rank_link.Progress() | rank_link.TotalSteps() | rank_link.BatchSize() | rank_link.Metrics():
                self._figures_said(message)
            case rank_link.CheckpointWritten(uri, step, time, handover, seconds, stalled):
                self._check_own(uri)
                if standing.checkpoint and standing.checkpoint.uri == uri:
                    return  # Another rank has found it in the store.
                self._lost.stalled(stalled)
                known = standing.checkpoint
                if known is None or step >= known.step or time >= known.time:  # Else its agent was slow to tell.
                    standing.checkpoint = Checkpoint(uri, step, time)
                self._has_checkpoint = True
                standing.step = max(step, standing.step or 0)  # Progress is told a few times a second only.
                kind = EventKind.HANDOVER if handover else EventKind.CHECKPOINT
                words = f"durable checkpoint of step {step} at {uri} in {seconds:.2f} s"
                self.event(kind, words, worker, step=step, logged=False)
                self._checkpoint_lines.written(step, seconds, handover=handover)
            case rank_link.CheckpointFailed(step, reason):
                self._checkpoint_lines.failed()
                words = f"durable checkpoint of step {step} FAILED: {reason}"
                self.event(EventKind.CHECKPOINT, words, worker, step=step, level=logging.WARNING)
            case rank_link.CheckpointSkipped(uri, reason):
                self.event(EventKind.CHECKPOINT_SKIPPED, f"{uri} is not used: {reason}", worker)
            case rank_link.Resumed(uri, step):
                self._has_checkpoint = True
                self.lives.resumed()
                standing.step = step
                self._figures.go_back(step)
                self.event(EventKind.RESUMED, f"from the durable checkpoint of step {step} at {uri}", worker)
            case rank_link.Returned(value):
                standing.returned = value
            case rank_link.OutputsSaved(files, size) if store := self._spec.checkpoint:
                uri = f"{store.uri.rstrip('/')}/{outputs_folder(store.fence)}"
                standing.outputs = Outputs(uri, files, size) if files else None

    def _figures_said(
        self, message: rank_link.Progress | rank_link.TotalSteps | rank_link.BatchSize | rank_link.Metrics
    ) -> None:
        match message:
            case rank_link.Progress(step):
                self._life_stepped(step)
                self._standing.step = step
                self._figures.progress(step, self._now())
                self._lost.stepped(self._now())
                self._progress.stepped(step, self._now())
            case rank_link.TotalSteps():
                self._progress.total(message)
            case rank_link.BatchSize(samples):
                self._figures.samples = samples
            case rank_link.Metrics(values, at):
                self._life_stepped(at)
                self._figures.report(values, self._standing.step if at is None else at, self._now())

    def _life_stepped(self, step: int | None) -> None:
        if self._world_began is not None:
            seconds, self._world_began = (self._now() - self._world_began).total_seconds(), None
            size = self._standing.world_size
            log.info("first step %.1f s after the world of %d ranks was complete", max(0.0, seconds), size)
        if words := self.lives.stepped(step):
            self.event(EventKind.WARNING, words, step=step)

    def starts(self, ranks: int) -> int:
        """Fresh processes are started for a world of so many ranks. Returns how often they were before."""
        self.lives.begins(ranks)
        self._starts += 1
        return self._starts - 1

    def restarted(self, ranks: int, more: str = "") -> None:
        """A new session begins, after one that was lost, or a pause; ``more``: of the state that was lost with it."""
        self.lives.begins(ranks)
        if self._resumes:
            return
        anew = "from the newest checkpoint"
        if not self._has_checkpoint:
            anew = "anew: no checkpoint is known here, so from one that the script finds itself, or the beginning"
        self.event(EventKind.RESTARTED, f"{ranks} ranks start {anew}{more}")

    def stopped(self, ended: Sequence[Stopped], ranks: Mapping[str, int]) -> None:
        """Ranks that were asked to end have ended: what people should know of it.

        Args:
            ended: they.
            ranks: rank by rank id, of the present world.
        """
        hung = [each for each in ended if each.stacks]
        for each in hung:
            rank, code = ranks.get(each.rank_id), each.code or 0
            if at := self.failures.hung(each.rank_id, code, each.worker, rank, self._standing.step):
                words = f"rank {each.rank_id} was still at work when others gave up waiting for it, and was ended: {at}"
                self.event(EventKind.WARNING, words, each.worker)
        if late := overdue_message(ended):
            self.event(EventKind.WARNING, late)
        unhandled = unhandled_message(ended)
        if unhandled and not self._told_unhandled:
            self._told_unhandled = True
            self.event(EventKind.WARNING, unhandled)
        self._cut = self._cut or any(each.interrupt and (each.overdue or each.unhandled) for each in ended)

    def _check_own(self, uri: str) -> None:
        """The tasks that follow load what the status names."""
        store = self._spec.checkpoint
        if store is not None and uri.rpartition("/")[0] != store.uri.rstrip("/"):
            raise InvalidDocument(f"uri: {printable(uri, 60)!r} is not in the checkpoint store of this run")

    def gone(self, worker: Worker, state: WorkerState) -> None:
        """A worker is not here any more."""
        self._machine_time.gone(worker, self._now())
        self.failures.gone(worker.name)
        self._workers.gone(worker, state)

    def status(
        self,
        workers: Iterable[Worker],
        ranks: Mapping[str, int],
        wanted: int,
        planned: Sequence[tuple[datetime, int]] = (),
    ) -> Status:
        """The document, as of now.

        Args:
            workers: that are here.
            ranks: rank by rank id, of the present world.
            wanted: workers asked for.
            planned: workers that the size plan asks for later, ascending, and from when on.
        """
        here, now = list(workers), self._now()
        present = self._workers.present(here, ranks)
        for worker, told in zip(here, present, strict=True):
            self._machine_time.look(worker, now, idle=not (told.ranks and self._standing.world_size))
        if not self._asked or self._asked[-1].workers != wanted:
            self._asked.append(SizeAsked(self._now(), wanted))
        standing, lost = self._standing, self._lost.told(now)
        slots = self._spec.workers.slots
        later = [(begin, workers * slots) for begin, workers in planned]
        joined = sum(1 for worker in here if worker.joined and worker.deadline is None)
        aim = total_wanted(wanted, joined, self._spec.workers) * slots
        sizes = Sizes(standing.world_size, aim, later, leaving_ranks(here, ranks))
        self.time_left = self._progress.told(standing.step, standing.phase, sizes, lost, now)
        usage = self._machine_time.usage(here, now)
        self.worker_seconds = sum(each.seconds for each in usage)
        first = None if standing.phase is Phase.SUCCEEDED else self.failures.first
        return Status(
            run=self._spec.name,
            uid=self._spec.uid,
            phase=standing.phase,
            reason=standing.reason,
            updated=now,
            started=standing.started,
            finished=standing.finished,
            failure=standing.failure,
            exit_code=first.exit_code if first and standing.failure is FailureKind.RANK_FAILED else None,
            first_failure=first,
            world_size=standing.world_size,
            target_size=wanted,
            generation=standing.generation,
            step=standing.step,
            progress=self.time_left,
            paces=self._progress.paces.told(),
            metrics=dict(self._figures.metrics),
            series=self._figures.series,
            throughput=self._figures.throughput,
            sample_throughput=self._figures.sample_throughput,
            hardware=self._hardware.told(worker.name for worker in here),
            lost_seconds=lost,
            workers=(*self._workers.past, *present),
            events=tuple(self._events),
            checkpoint=standing.checkpoint,
            returned=standing.returned,
            outputs=standing.outputs,
            pause=standing.pause,
            memory=tuple(self._memory),
            history=tuple(self._history),
            asked=tuple(self._asked),
            worker_seconds=self._workers.past_seconds | {worker.name: worker.seconds for worker in present},
            usage=usage,
            starts=self._starts,
            rank_failures=self.rank_failures,
            forced_resets=self.forced_resets,
        )
