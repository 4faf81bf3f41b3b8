"""A cluster in memory, for tests of DAGs and of this package: no process, no file, no waiting.

By itself it behaves like a healthy launcher that is infinitely fast: a created run trains at once, a set size is the
world's size at once, a reclaimed worker has left at once, a cancelled run has failed at once. With
``automatic=False`` nothing happens but what the test publishes. Runs end by :meth:`FakeCluster.succeed` and
:meth:`FakeCluster.fail`.

It passes the same contract suite as the real ones::

    with substituted("local", fake := FakeCluster()):
        fake.script(lambda: fake.succeed(name))
        assert operator.execute(context)["phase"] == "succeeded"
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from elastic_runtime.errors import Conflict, FailureKind, RunNotFound
from elastic_runtime.run.headline import headline
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Event, EventKind, Pause, Phase, Status, WorkerState, WorkerStatus, World
from elastic_training.clusters.claims import Observed, Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import RunDocument, SizeRequest
from elastic_training.clusters.place import PolledPlace, Scale
from elastic_training.clusters.types import LogLines, RunSummary


@dataclass
class FakeRun:
    """One incarnation, open to the test's eyes."""

    document: RunDocument
    status: Status
    size: int
    log: list[str] = field(default_factory=list)
    lease_renewals: int = 0
    names: int = 0
    """Workers named so far."""

    @property
    def spec(self) -> RunSpec:
        """Return the spec with which the run was created."""
        return self.document.spec


class FakeCluster(Cluster):
    """A cluster in memory, for tests.

    Args:
        automatic: follow wishes at once.
        poll: seconds between two looks of a watch.
    """

    def __init__(self, *, automatic: bool = True, poll: float = 0.01) -> None:
        self.runs: dict[str, FakeRun] = {}
        self.credentials: dict[str, str] = {}
        """Of the checkpoint store, for ranks."""
        self.automatic = automatic
        self.steps: deque[Callable[[], object]] = deque()
        super().__init__(_Memory(self, poll))

    def script(self, *steps: Callable[[], object]) -> None:
        """Steps that a watch takes, one each time when it has nothing to tell, instead of waiting.

        Each is called in a thread, so that it may do what a task's own code does; what it returns is awaited if it can
        be.
        """
        self.steps.extend(steps)

    def named(self, name: str) -> FakeRun:
        """The present incarnation. Raises RunNotFound."""
        if name not in self.runs:
            raise RunNotFound(f"run {name} does not exist")
        return self.runs[name]

    def publish(self, name: str, **changes: Any) -> Status:
        """Play launcher: change fields of the status."""
        run = self.named(name)
        run.status = replace(run.status, updated=datetime.now(UTC), **changes)
        return run.status

    def write_log(self, name: str, *lines: str) -> None:
        """Play launcher: append to the log."""
        self.named(name).log.extend(lines)

    def train(self, name: str, workers: int) -> None:
        """Play launcher: a new world with so many workers trains."""
        run, now = self.named(name), datetime.now(UTC)
        present = [worker for worker in run.status.workers if not worker.state.gone]
        past = [worker for worker in run.status.workers if worker.state.gone]
        past += [replace(worker, state=WorkerState.LEFT, since=now) for worker in present[workers:]]
        present = present[:workers]
        while len(present) < workers:
            worker = WorkerStatus(f"worker-{run.names}", "fake", WorkerState.TRAINING, now, run.spec.workers.slots)
            present.append(worker)
            run.names += 1
        world = World(now, workers * run.spec.workers.slots, run.status.generation + 1, run.status.step)
        self.tell(name, EventKind.SCALED, f"{world.size} ranks train", world_size=world.size)
        self.publish(
            name,
            phase=Phase.RUNNING,
            reason="all is well",
            started=run.status.started or now,
            world_size=world.size,
            target_size=run.size,
            generation=world.generation,
            pause=None,
            workers=tuple(past + present),
            history=(*run.status.history, world),
        )

    def succeed(self, name: str) -> None:
        """Play launcher: the training ends well."""
        self._end(name, Phase.SUCCEEDED, "all ranks ended with code 0", None)

    def give_up_workers(self, name: str, request: SizeRequest) -> None:
        """Play launcher: the run is paused, and all workers have left."""
        run, now = self.named(name), datetime.now(UTC)
        run.size = 0
        gone = tuple(replace(each, state=WorkerState.LEFT, since=now) for each in run.status.workers)
        told = Pause(request.name, request.by, request.workers, now)
        self.tell(name, EventKind.PAUSED, "paused")
        self.publish(name, phase=Phase.PAUSED, reason="paused", pause=told, workers=gone, world_size=0, target_size=0)

    def fail(self, name: str, kind: FailureKind, reason: str, exit_code: int | None = None) -> None:
        """Play launcher: the training ends badly; or, with ``launcher_lost``, the launcher itself."""
        self.publish(name, exit_code=exit_code)
        self._end(name, Phase.FAILED, reason, kind)

    def tell(self, name: str, kind: EventKind, message: str, **about: Any) -> None:
        """Play launcher: add an event."""
        event = Event(datetime.now(UTC), kind, message, **about)
        self.publish(name, events=(*self.named(name).status.events, event))

    def _end(self, name: str, phase: Phase, reason: str, kind: FailureKind | None) -> None:
        self.tell(name, EventKind.FINISHED, reason)
        self.publish(name, phase=phase, reason=reason, failure=kind, world_size=0, finished=datetime.now(UTC))


class _Memory(PolledPlace):
    """Its runs, and how a launcher that is infinitely fast reacts to what is asked of them."""

    where = "in memory"
    linger = 0.0
    times = Times(creation=0.0, pause=0.0)

    def __init__(self, cluster: FakeCluster, poll: float) -> None:
        self._cluster = cluster
        self.poll = poll

    def set_rank_credentials(self, credentials: Mapping[str, str]) -> None:
        self._cluster.credentials = dict(credentials)

    async def plan(self, spec: RunSpec) -> str:
        return f"{spec.workers.start} workers in memory; each rank: {' '.join(spec.command)}"

    async def read(self, name: str) -> RunDocument | None:
        run = self._cluster.runs.get(name)
        return run.document if run else None

    async def create(self, spec: RunSpec, owner: str) -> RunDocument:
        if spec.name in self._cluster.runs:
            raise Conflict(f"there is a run {spec.name}")
        now, start = datetime.now(UTC), spec.workers.start
        status = Status(spec.name, spec.uid, Phase.PENDING, "the launcher is starting", now, target_size=start)
        self._cluster.runs[spec.name] = made = FakeRun(RunDocument(spec, owner, now, now), status, start)
        if self._cluster.automatic:
            self._cluster.write_log(spec.name, "the launcher has started")
            self._cluster.train(spec.name, start)
        return made.document

    async def change(self, found: RunDocument, wanted: RunDocument) -> RunDocument:
        run = self._run(found)
        run.document = wanted
        run.lease_renewals += wanted.renewed != found.renewed
        if wanted.pause and wanted.pause != found.pause and self._cluster.automatic:
            self._cluster.give_up_workers(found.ref.name, wanted.pause)
        asked_to_end = wanted.cancelled is not None and found.cancelled is None and not run.status.phase.final
        if asked_to_end and self._cluster.automatic:
            self._cluster.fail(found.ref.name, FailureKind.CANCELLED, str(wanted.cancelled))
        return wanted

    async def remove(self, found: RunDocument, *, forced: bool) -> bool:  # noqa: ARG002  # nothing here can hang
        self._run(found)
        del self._cluster.runs[found.ref.name]
        return True

    async def list(self) -> Iterable[RunSummary]:
        return [run.document.summary(headline(run.status)) for run in self._cluster.runs.values()]

    async def observe(self, found: RunDocument) -> Observed:
        run = self._cluster.named(found.ref.name)
        return Observed(run.status, launcher=self._cluster.automatic and not run.status.phase.final)

    async def read_log(self, found: RunDocument, cursor: str, *, ended: bool) -> LogLines:  # noqa: ARG002  # whole lines
        log = self._cluster.named(found.ref.name).log
        return LogLines(tuple(log[int(cursor) :]), str(len(log)))

    async def scale(self, name: str) -> Scale:
        return Scale(self._cluster.named(name).size)

    async def resize(self, found: RunDocument, scale: Scale, workers: int) -> None:
        run = self._run(found)
        if run.size != scale.workers:
            raise Conflict(f"the size of {found.ref.name} has been changed")
        run.size = workers
        if self._cluster.automatic:
            self._cluster.tell(found.ref.name, EventKind.SIZE_ASKED, f"{workers} workers wanted")
            self._cluster.train(found.ref.name, workers)

    async def reclaim(self, found: RunDocument, worker: str, grace: timedelta) -> bool:
        name, run = found.ref.name, self._run(found)
        state = WorkerState.LEFT if self._cluster.automatic else WorkerState.LEAVING
        self._cluster.tell(name, EventKind.NOTICE, f"{worker} will be taken in {grace}", worker=worker)
        moved = (replace(each, state=state) if each.name == worker else each for each in run.status.workers)
        self._cluster.publish(name, workers=tuple(moved))
        if self._cluster.automatic:
            self._cluster.tell(name, EventKind.LEFT, f"{worker} has left", worker=worker)
            self._cluster.train(name, sum(not each.state.gone for each in run.status.workers))
        return True

    async def rest(self, seconds: float) -> None:
        if self._cluster.steps:
            outcome = await asyncio.to_thread(self._cluster.steps.popleft())
            if inspect.isawaitable(outcome):
                await outcome
        await asyncio.sleep(seconds)

    def _run(self, found: RunDocument) -> FakeRun:
        """Raises RunNotFound, or Conflict when its document is not the one that was read any more."""
        run = self._cluster.named(found.ref.name)
        if run.document is not found:
            raise Conflict(f"the run {found.ref.name} has been changed")
        return run
