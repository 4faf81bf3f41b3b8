"""``cluster="local"``: launcher and workers as processes of this machine, meeting in a folder.

The folder (:mod:`elastic_runtime.rundir`, :mod:`~elastic_training.clusters.local_files`) is all there is; every
process that can read it, worker or triggerer, sees the same runs. A run is built beside and renamed into place, so it
exists whole or not at all.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings, OwnershipLost, RunNotFound
from elastic_runtime.rundir import ReclaimNotice, RunDir
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import FailureKind, Phase, Status, WorkerState
from elastic_training.clusters import local_files as files
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
from elastic_training.clusters.local_process import kill_session, process_lives, read_starter, start_launcher

_PAUSE = 0.05
"""Seconds between two looks while a launcher ends."""
_PRESENT = (WorkerState.STARTING, WorkerState.READY, WorkerState.TRAINING, WorkerState.LEAVING)


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """In seconds."""

    poll: float = 0.5
    """Between two looks at a watched run's files."""
    end_wait: float = 90.0
    """How long a claim waits for a run that is ending."""
    delete_wait: float = 30.0
    """How long a delete waits for a living run to end in order, before it kills the launcher."""
    creation: float = 60.0
    """A run without any launcher process is taken for one that is just being created for so long."""
    linger: float = 10.0
    """How long the end of a watch waits for the launcher's last log lines after the final status."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a run, as its watch sees it."""

    status: Status
    lines: tuple[str, ...]
    offset: int
    gone: bool
    """The launcher has ended; nothing more will be written."""


class LocalCluster(Cluster):
    """Runs under one folder of this machine.

    Args:
        root: folder of all runs; created when missing, and refused when others can write to it.
        python: interpreter of the launcher and, by its ``PATH``, of the ranks; has ``elastic-runtime[horovod]``.
        times: for tests.
    """

    def __init__(self, root: Path, python: str, times: LocalTimes | None = None) -> None:
        self._root = root
        self._python = python
        self._times = times or LocalTimes()

    def claim(self, spec: RunSpec, owner: str, *, fresh: bool = False) -> Claim:
        """See :meth:`Cluster.claim`."""
        files.private_folder(self._root)
        for _ in self._until(self._times.end_wait):
            with files.deciding(self._root, spec.name):
                if claim := self._claim(spec, owner, fresh):
                    return claim
        raise ClusterUnavailable(
            f"the run {spec.name} in {self._root} was asked to end and has not ended in {self._times.end_wait:g} s; "
            "its launcher may hang: see its log"
        )

    def _claim(self, spec: RunSpec, owner: str, fresh: bool) -> Claim | None:
        """The claim, or None when an old run has to end first."""
        try:
            ref = self.find(spec.name)
        except RunNotFound:
            return Claim(self._create(spec, owner), ClaimOutcome.CREATED, "no run of this name was there")
        run, old = self._open(ref)
        alive = self._alive(run, creating=False)
        status = self._status(run, old, alive)
        uncollected = status.phase is Phase.SUCCEEDED and not (run.path / "collected").exists()
        running = alive and not status.phase.final and not run.cancel.exists()
        if (running or uncollected) and not fresh:
            run.write_owner(owner)
            os.utime(run.lease)
            run.watched.unlink(missing_ok=True)
            if before := files.read_log_lease(run):
                files.write_log_lease(run, files.StoredLogLease(NOBODY, before.cursor))
            return Claim(ref, ClaimOutcome.ADOPTED, f"it is {status.phase}: {status.reason}", differing(old, spec))
        if alive:
            run.ask_to_end("a new try of the task takes its place")
            return None
        return Claim(self._create(spec, owner), ClaimOutcome.REPLACED, f"before it {status.phase}: {status.reason}")

    def _create(self, spec: RunSpec, owner: str) -> RunRef:
        """Lay the run down in the place of any other, and start its launcher."""
        place = self._root / spec.name
        building = RunDir(self._root / f".new.{spec.name}.{spec.uid}")
        try:
            building.create(spec, owner)
            files.discard(place)
            building.path.rename(place)
        except OSError as error:
            files.discard(building.path)
            raise ClusterUnavailable(f"cannot lay the run {spec.name} down in {self._root}: {error}") from error
        try:
            start_launcher(self._python, RunDir(place))
        except OSError as error:
            files.discard(place)
            raise InvalidSettings(
                "[elastic_training] local_python",
                f"{self._python} cannot be started: {error}",
                "Name an interpreter in which elastic-runtime[horovod] is installed",
            ) from error
        return RunRef(spec.name, spec.uid)

    def plan(self, spec: RunSpec) -> str:
        """See :meth:`Cluster.plan`."""
        workers = spec.workers
        return (
            f"folder {self._root / spec.name}; launcher: {self._python} -m elastic_runtime.launcher; "
            f"{workers.start} workers ({workers.minimum} to {workers.maximum}) with {workers.slots} slots each; "
            f"each rank: {' '.join(spec.command)}"
        )

    def find(self, name: str) -> RunRef:
        """See :meth:`Cluster.find`."""
        return RunRef(name, RunDir(self._root / name).read_spec().uid)

    def spec(self, ref: RunRef) -> RunSpec:
        """See :meth:`Cluster.spec`."""
        return self._open(ref)[1]

    def owner(self, ref: RunRef) -> str:
        """See :meth:`Cluster.owner`."""
        return self._open(ref)[0].read_owner()

    def status(self, ref: RunRef) -> Status:
        """See :meth:`Cluster.status`."""
        run, spec = self._open(ref)
        return self._status(run, spec, self._alive(run))

    def size(self, ref: RunRef) -> int:
        """See :meth:`Cluster.size`."""
        return self._open(ref)[0].read_size()

    def set_size(self, ref: RunRef, workers: int, request: str) -> bool:
        """See :meth:`Cluster.set_size`."""
        with self._held(ref) as (run, spec):
            check_size(workers, spec.workers)
            marker = files.request_marker(run, request)
            if marker.exists():
                return False
            run.write_size(workers)
            marker.touch()
            return True

    def reclaim(self, ref: RunRef, worker: str, grace: timedelta) -> datetime:
        """See :meth:`Cluster.reclaim`."""
        present = [found.name for found in self.status(ref).workers if found.state in _PRESENT]
        if worker not in present:
            known = ", ".join(present) or "none"
            raise InvalidSettings("worker", f"the run {ref.name} has no worker {worker!r}", f"Name one of: {known}")
        deadline = datetime.now(UTC) + grace
        self._open(ref)[0].write_notice(worker, ReclaimNotice(source="drill", deadline=deadline))
        return deadline

    def cancel(self, ref: RunRef, reason: str, owner: str) -> None:
        """See :meth:`Cluster.cancel`."""
        try:
            with self._held(ref, owner) as (run, _):
                run.ask_to_end(reason)
        except RunNotFound:
            return

    def delete(self, ref: RunRef, owner: str) -> None:
        """See :meth:`Cluster.delete`."""
        try:
            for last_chance in (False, True):
                for _ in self._until(self._times.delete_wait):
                    with self._held(ref, owner) as (run, _):
                        if not self._alive(run, creating=False):
                            return files.discard(run.path)
                        run.ask_to_end("the run is deleted")
                        if last_chance and (starter := read_starter(run)):
                            kill_session(starter)
        except RunNotFound:
            return None
        raise ClusterUnavailable(f"the launcher of {ref.name} in {self._root} does not end, not even by SIGKILL")

    def collect(self, ref: RunRef, owner: str) -> None:
        """See :meth:`Cluster.collect`."""
        try:
            with self._held(ref, owner) as (run, _):
                (run.path / "collected").touch()
        except RunNotFound:
            return

    def renew_lease(self, ref: RunRef, token: str) -> None:
        """See :meth:`Cluster.renew_lease`."""
        with self._held(ref) as (run, _):
            self._check_log_lease(run, token)
            os.utime(run.lease)

    def take_log_lease(self, ref: RunRef, owner: str) -> LogLease:
        """See :meth:`Cluster.take_log_lease`."""
        with self._held(ref, owner) as (run, _):
            before = files.read_log_lease(run)
            mine = files.StoredLogLease(secrets.token_hex(8), before.cursor if before else LOG_START)
            files.write_log_lease(run, mine)
            os.utime(run.lease)
            run.watched.touch()
            return LogLease(mine.token, mine.cursor, run.read_spec().timing.lease)

    def advance(self, ref: RunRef, token: str, cursor: str) -> None:
        """See :meth:`Cluster.advance`."""
        with self._held(ref) as (run, _):
            self._check_log_lease(run, token)
            files.write_log_lease(run, files.StoredLogLease(token, cursor))
            os.utime(run.lease)

    def log_lease_holder(self, ref: RunRef) -> str | None:
        """See :meth:`Cluster.log_lease_holder`."""
        present = files.read_log_lease(self._open(ref)[0])
        return present.token if present else None

    async def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        """See :meth:`Cluster.watch`. Looks at a handful of small files every ``times.poll`` seconds, in a thread."""
        now: Callable[[], float] = asyncio.get_running_loop().time
        offset = None if cursor is None else int(cursor)
        seen: Status | None = None
        spoke, over_since = now(), None
        while True:
            look = await asyncio.to_thread(self._look, ref, offset)
            over_since = over_since or (now() if look.status.phase.final else None)
            drained = not look.lines and over_since and (look.gone or now() > over_since + self._times.linger)
            if look.lines:
                offset, spoke = look.offset, now()
                yield LogLines(look.lines, str(look.offset))
                continue  # There may be more of them at once.
            if look.status != seen and (drained or not look.status.phase.final):
                seen, spoke = look.status, now()
                yield StatusChanged(seen)
            if drained:
                return
            if now() >= spoke + beat:
                spoke = now()
                yield Quiet()
            await asyncio.sleep(min(self._times.poll, beat))

    @staticmethod
    def _check_log_lease(run: RunDir, token: str) -> None:
        present = files.read_log_lease(run)
        if present is None or present.token != token:
            raise OwnershipLost(f"somebody else watches the run {run.path.name} now")

    def _look(self, ref: RunRef, offset: int | None) -> _Look:
        # The order counts: what was gone before the log was read has written all of it.
        run, spec = self._open(ref)
        alive = self._alive(run)
        status = self._status(run, spec, alive)
        if offset is None:
            return _Look(status, (), 0, not alive)
        lines, end = files.read_lines(run.log, offset, to_the_end=not alive)
        return _Look(status, lines, end, not alive)

    def _open(self, ref: RunRef) -> tuple[RunDir, RunSpec]:
        run = RunDir(self._root / ref.name)
        spec = run.read_spec()
        if spec.uid != ref.uid:
            raise RunNotFound(f"the run {ref.name} with uid {ref.uid} has been replaced by {spec.uid}")
        return run, spec

    @contextmanager
    def _held(self, ref: RunRef, owner: str | None = None) -> Iterator[tuple[RunDir, RunSpec]]:
        """The run, while nobody else can decide about it; with ``owner``, only when it is theirs."""
        self._open(ref)  # Before the lock, so that asking about what never was leaves no lock file.
        with files.deciding(self._root, ref.name):
            run, spec = self._open(ref)
            if owner is not None and (present := run.read_owner()) != owner:
                raise OwnershipLost(f"the run {ref.name} belongs to {present} now")
            yield run, spec

    def _alive(self, run: RunDir, *, creating: bool = True) -> bool:
        """Whether there is a launcher.

        Args:
            run: whose.
            creating: the caller does not hold the lock, so that a run without any process may be one that is just
                being created.
        """
        starter = read_starter(run)
        if starter and process_lives(starter):
            return True  # Without touching the lock, which it may be about to take.
        if run.launcher_alive():
            return True  # One that somebody has started by hand.
        return starter is None and creating and time.time() < _created(run).timestamp() + self._times.creation

    def _status(self, run: RunDir, spec: RunSpec, alive: bool) -> Status:
        status = run.read_status()
        if status is None:
            size, reason = run.read_size(), "the launcher is starting"
            status = Status(spec.name, spec.uid, Phase.PENDING, reason, _created(run), target_size=size)
        if alive or status.phase.final:
            return status
        return replace(
            status,
            phase=Phase.FAILED,
            failure=FailureKind.LAUNCHER_LOST,
            reason=f"the launcher is gone without a final status; last line of its log: {files.last_line(run.log)!r}",
            world_size=0,
            finished=status.updated,
        )

    @staticmethod
    def _until(seconds: float) -> Iterator[None]:
        """Again and again, with a pause between, for so long; at least once."""
        end = time.monotonic() + seconds
        yield
        while time.monotonic() < end:
            time.sleep(_PAUSE)
            yield


def _created(run: RunDir) -> datetime:
    try:
        return datetime.fromtimestamp((run.path / "spec.json").stat().st_mtime, UTC)
    except FileNotFoundError:
        raise RunNotFound(f"no run in {run.path} (any more)") from None
