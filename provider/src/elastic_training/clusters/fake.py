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
import secrets
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from elastic_runtime.errors import InvalidSettings, OwnershipLost, RunNotFound
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import Event, EventKind, FailureKind, Phase, Status, WorkerState, WorkerStatus, World
from elastic_training.clusters.base import (
    LOG_START,
    NOBODY,
    Claim,
    ClaimOutcome,
    Cluster,
    LogLease,
    LogLines,
    Quiet,
    RunRef,
    StatusChanged,
    Update,
    check_size,
    differing,
)


@dataclass
class FakeRun:
    """One incarnation, open to the test's eyes."""

    spec: RunSpec
    owner: str
    status: Status
    size: int
    log: list[str] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)
    log_lease: LogLease | None = None
    collected: bool = False
    cancelled: str | None = None
    """The reason."""
    lease_renewals: int = 0
    names: int = 0
    """Workers named so far."""


class FakeCluster(Cluster):
    """See the module.

    Args:
        automatic: follow wishes at once.
        poll: seconds between two looks of a watch.
    """

    def __init__(self, *, automatic: bool = True, poll: float = 0.01) -> None:
        self.runs: dict[str, FakeRun] = {}
        self._automatic = automatic
        self._poll = poll
        self._script: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()

    def script(self, *steps: Callable[[], object]) -> None:
        """Steps that a watch takes, one each time when it has nothing to tell, instead of waiting."""
        self._script.extend(steps)

    def publish(self, name: str, **changes: Any) -> Status:
        """Play launcher: change fields of the status."""
        with self._lock:
            run = self._named(name)
            run.status = replace(run.status, updated=datetime.now(UTC), **changes)
            return run.status

    def write_log(self, name: str, *lines: str) -> None:
        """Play launcher: append to the log."""
        with self._lock:
            self._named(name).log.extend(lines)

    def train(self, name: str, workers: int) -> None:
        """Play launcher: a new world with so many workers trains."""
        with self._lock:
            run, now = self._named(name), datetime.now(UTC)
            gone = (WorkerState.LEFT, WorkerState.LOST)
            present = [worker for worker in run.status.workers if worker.state not in gone]
            past = [worker for worker in run.status.workers if worker.state in gone]
            past += [replace(worker, state=WorkerState.LEFT, since=now) for worker in present[workers:]]
            present = present[:workers]
            while len(present) < workers:
                worker = WorkerStatus(f"worker-{run.names}", "fake", WorkerState.TRAINING, now, run.spec.workers.slots)
                present.append(worker)
                run.names += 1
            world = World(now, workers * run.spec.workers.slots, run.status.generation + 1, run.status.step)
            self._event(name, EventKind.SCALED, f"{world.size} ranks train", world_size=world.size)
            self.publish(
                name,
                phase=Phase.RUNNING,
                reason="all is well",
                started=run.status.started or now,
                world_size=world.size,
                target_size=run.size,
                generation=world.generation,
                workers=tuple(past + present),
                history=(*run.status.history, world),
            )

    def succeed(self, name: str) -> None:
        """Play launcher: the training ends well."""
        self._end(name, Phase.SUCCEEDED, "all ranks ended with code 0", None)

    def fail(self, name: str, kind: FailureKind, reason: str) -> None:
        """Play launcher: the training ends badly; or, with ``launcher_lost``, the launcher itself."""
        self._end(name, Phase.FAILED, reason, kind)

    def claim(self, spec: RunSpec, owner: str, *, fresh: bool = False) -> Claim:
        """See :meth:`Cluster.claim`."""
        with self._lock:
            old = self.runs.get(spec.name)
            if old is not None and not fresh and self._worth_adopting(old):
                old.owner = owner
                old.log_lease = old.log_lease and replace(old.log_lease, token=NOBODY)
                ref = RunRef(spec.name, old.spec.uid)
                return Claim(ref, ClaimOutcome.ADOPTED, f"it is {old.status.phase}", differing(old.spec, spec))
            created = Status(spec.name, spec.uid, Phase.PENDING, "the launcher is starting", datetime.now(UTC))
            start = spec.workers.start
            self.runs[spec.name] = FakeRun(spec, owner, replace(created, target_size=start), start)
            if self._automatic:
                self.write_log(spec.name, "the launcher has started")
                self.train(spec.name, start)
            outcome = ClaimOutcome.REPLACED if old else ClaimOutcome.CREATED
            return Claim(RunRef(spec.name, spec.uid), outcome, "in memory")

    @staticmethod
    def _worth_adopting(run: FakeRun) -> bool:
        succeeded = run.status.phase is Phase.SUCCEEDED and not run.collected
        return succeeded or (not run.status.phase.final and run.cancelled is None)

    def plan(self, spec: RunSpec) -> str:
        """See :meth:`Cluster.plan`."""
        return f"{spec.workers.start} workers in memory; each rank: {' '.join(spec.command)}"

    def find(self, name: str) -> RunRef:
        """See :meth:`Cluster.find`."""
        return RunRef(name, self._named(name).spec.uid)

    def spec(self, ref: RunRef) -> RunSpec:
        """See :meth:`Cluster.spec`."""
        return self._run(ref).spec

    def owner(self, ref: RunRef) -> str:
        """See :meth:`Cluster.owner`."""
        return self._run(ref).owner

    def status(self, ref: RunRef) -> Status:
        """See :meth:`Cluster.status`."""
        return self._run(ref).status

    def size(self, ref: RunRef) -> int:
        """See :meth:`Cluster.size`."""
        return self._run(ref).size

    def set_size(self, ref: RunRef, workers: int, request: str) -> bool:
        """See :meth:`Cluster.set_size`."""
        with self._lock:
            run = self._run(ref)
            check_size(workers, run.spec.workers)
            if request in run.requests:
                return False
            run.requests.add(request)
            run.size = workers
            if self._automatic:
                self._event(ref.name, EventKind.SIZE_ASKED, f"{workers} workers wanted")
                self.train(ref.name, workers)
            return True

    def reclaim(self, ref: RunRef, worker: str, grace: timedelta) -> datetime:
        """See :meth:`Cluster.reclaim`."""
        with self._lock:
            run = self._run(ref)
            gone = (WorkerState.LEFT, WorkerState.LOST)
            present = [found.name for found in run.status.workers if found.state not in gone]
            if worker not in present:
                known = ", ".join(present) or "none"
                raise InvalidSettings("worker", f"the run has no worker {worker!r}", f"Name one of: {known}")
            state = WorkerState.LEFT if self._automatic else WorkerState.LEAVING
            self._event(ref.name, EventKind.NOTICE, f"{worker} will be taken", worker=worker)
            moved = (replace(w, state=state) if w.name == worker else w for w in run.status.workers)
            self.publish(ref.name, workers=tuple(moved))
            if self._automatic:
                self._event(ref.name, EventKind.LEFT, f"{worker} has left", worker=worker)
                self.train(ref.name, len(present) - 1)
            return datetime.now(UTC) + grace

    def cancel(self, ref: RunRef, reason: str, owner: str) -> None:
        """See :meth:`Cluster.cancel`."""
        with self._lock:
            try:
                run = self._owned(ref, owner)
            except RunNotFound:
                return
            if run.status.phase.final:
                return
            run.cancelled = run.cancelled or reason
            if self._automatic:
                self.fail(ref.name, FailureKind.CANCELLED, reason)

    def delete(self, ref: RunRef, owner: str) -> None:
        """See :meth:`Cluster.delete`."""
        with self._lock:
            try:
                self._owned(ref, owner)
            except RunNotFound:
                return
            del self.runs[ref.name]

    def collect(self, ref: RunRef, owner: str) -> None:
        """See :meth:`Cluster.collect`."""
        with self._lock:
            try:
                self._owned(ref, owner).collected = True
            except RunNotFound:
                return

    def renew_lease(self, ref: RunRef, token: str) -> None:
        """See :meth:`Cluster.renew_lease`."""
        with self._lock:
            self._attended(ref, token).lease_renewals += 1

    def take_log_lease(self, ref: RunRef, owner: str) -> LogLease:
        """See :meth:`Cluster.take_log_lease`."""
        with self._lock:
            run = self._owned(ref, owner)
            run.log_lease = LogLease(secrets.token_hex(8), run.log_lease.cursor if run.log_lease else LOG_START)
            return replace(run.log_lease, lease=run.spec.timing.lease)

    def advance(self, ref: RunRef, token: str, cursor: str) -> None:
        """See :meth:`Cluster.advance`."""
        with self._lock:
            run = self._attended(ref, token)
            run.log_lease = LogLease(token, cursor)
            run.lease_renewals += 1

    def log_lease_holder(self, ref: RunRef) -> str | None:
        """See :meth:`Cluster.log_lease_holder`."""
        present = self._run(ref).log_lease
        return present.token if present else None

    async def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        """See :meth:`Cluster.watch`. A cursor counts lines."""
        now = asyncio.get_running_loop().time
        seen: Status | None = None
        spoke = now()
        while True:
            run = self._run(ref)
            status, lines = run.status, () if cursor is None else tuple(run.log[int(cursor) :])
            if lines:
                cursor, spoke = str(len(run.log)), now()
                yield LogLines(lines, cursor)
            if status != seen:
                seen, spoke = status, now()
                yield StatusChanged(status)
                if status.phase.final:
                    return
            elif self._script:
                self._script.popleft()()
            elif now() >= spoke + beat:
                spoke = now()
                yield Quiet()
            await asyncio.sleep(min(self._poll, beat))

    def _end(self, name: str, phase: Phase, reason: str, kind: FailureKind | None) -> None:
        with self._lock:
            self._event(name, EventKind.FINISHED, reason)
            now = datetime.now(UTC)
            self.publish(name, phase=phase, reason=reason, failure=kind, world_size=0, finished=now)

    def _event(self, name: str, kind: EventKind, message: str, **about: Any) -> None:
        event = Event(datetime.now(UTC), kind, message, **about)
        self.publish(name, events=(*self._named(name).status.events, event))

    def _named(self, name: str) -> FakeRun:
        try:
            return self.runs[name]
        except KeyError:
            raise RunNotFound(f"no run {name}") from None

    def _run(self, ref: RunRef) -> FakeRun:
        run = self._named(ref.name)
        if run.spec.uid != ref.uid:
            raise RunNotFound(f"the run {ref.name} with uid {ref.uid} has been replaced by {run.spec.uid}")
        return run

    def _attended(self, ref: RunRef, token: str) -> FakeRun:
        run = self._run(ref)
        if run.log_lease is None or run.log_lease.token != token:
            raise OwnershipLost(f"somebody else watches the run {ref.name} now")
        return run

    def _owned(self, ref: RunRef, owner: str) -> FakeRun:
        run = self._run(ref)
        if run.owner != owner:
            raise OwnershipLost(f"the run {ref.name} belongs to {run.owner} now")
        return run
