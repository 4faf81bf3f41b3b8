"""``cluster="local"``: launcher and workers as processes of this machine, meeting in a folder.

The folder (:mod:`elastic_runtime.run.rundir`, :mod:`~elastic_training.clusters.local_files`) is all there is; every
process that can read it, worker or triggerer, sees the same runs. A run is built beside and renamed into place, so it
exists whole or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    FailureKind,
    InvalidDocument,
    InvalidSettings,
    RunNotFound,
)
from elastic_runtime.run.headline import headline
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters import local_files as files
from elastic_training.clusters.claims import Observed, Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.local_process import kill_session, process_lives, read_starter, start_launcher
from elastic_training.clusters.local_python import NEEDED, SETTING, check_python
from elastic_training.clusters.place import PolledPlace, Scale, in_thread
from elastic_training.clusters.types import LogLines, RunSummary

TIMES = Times(claim=90.0, order=math.inf, delete=60.0, delete_order=30.0, creation=0.0, pause=0.05)
"""A claim never kills a launcher. A creator holds the lock, so that what is read as incomplete has none any more."""
_YOUNG = timedelta(minutes=1)
"""A run without a launcher is said to be pending for so long, as one that is just being created."""


class LocalCluster(Cluster):
    """Runs under one folder of this machine.

    Args:
        root: folder of all runs; created when missing, and refused, whatever is asked, when others can write to it.
        python: interpreter of the launcher and, by its ``PATH``, of the ranks; has
            :data:`~elastic_training.clusters.local_python.NEEDED`.
        times: for tests.
        poll: seconds between two looks at a watched run's files.
    """

    def __init__(self, root: Path, python: str, times: Times = TIMES, poll: float = 0.5) -> None:
        super().__init__(_Folder(root, python, times, poll))


class _Folder(PolledPlace):
    """The folder, and the processes that are started for it; each call in a thread, as all of them block."""

    def __init__(self, root: Path, python: str, times: Times, poll: float) -> None:
        self._root = root
        self._python = python
        self._credentials: Mapping[str, str] = {}
        self.times = times
        self.poll = poll

    @property
    def where(self) -> str:
        return f"in {self._root}"

    def worker_log(self, name: str, worker: str) -> str:
        return f"{RunDir(self._root / name).log}, the lines with {worker}"

    def set_rank_credentials(self, credentials: Mapping[str, str]) -> None:
        self._credentials = dict(credentials)

    async def plan(self, spec: RunSpec) -> str:
        workers = spec.workers
        return (
            f"folder {self._root / spec.name}; launcher: {self._python} -m elastic_runtime.launcher; "
            f"{workers.start} workers ({workers.minimum} to {workers.maximum}) with {workers.slots} slots each; "
            f"each rank: {' '.join(spec.command)}"
            f"{f'; shipped files: {spec.scripts.files}' if spec.scripts else ''}"
        )

    @in_thread
    def read(self, name: str) -> RunDocument | None:
        run = files.opened(self._root, name)
        if not run.exists():  # So that asking about what never was leaves no lock file.
            return None
        with files.deciding(self._root, name):
            return files.read_document(run) if run.exists() else None

    @in_thread
    def create(self, spec: RunSpec, owner: str) -> RunDocument:
        files.private_folder(self._root)
        check_python(self._python, spec)
        with files.deciding(self._root, spec.name):
            run = files.opened(self._root, spec.name)
            building = files.opened(self._root, f".new.{spec.name}.{spec.uid}")
            if run.exists() and run.read_spec().uid != spec.uid:
                raise Conflict(f"there is a run {spec.name} in {self._root}")
            try:
                building.create(spec, owner)
                files.discard(run.path)
                building.path.rename(run.path)
            except OSError as error:
                files.discard(building.path)
                raise ClusterUnavailable(f"cannot lay the run {spec.name} down in {self._root}: {error}") from error
            try:
                start_launcher(self._python, run, self._credentials)
            except OSError as error:
                files.discard(run.path)
                raise InvalidSettings(
                    SETTING,
                    f"{self._python} cannot be started: {error}",
                    f"Name an interpreter with {NEEDED}",
                ) from error
            return files.read_document(run)

    @in_thread
    def change(self, found: RunDocument, wanted: RunDocument) -> RunDocument:
        with self._held(found) as run:
            files.write_document(run, found, wanted)
            return files.read_document(run)

    @in_thread
    def remove(self, found: RunDocument, *, forced: bool) -> bool:
        with self._held(found) as run:
            if not self._alive(run):
                files.remove(self._root, found.ref.name)
                return True
            run.ask_to_end("the run is deleted")
            if forced and (starter := read_starter(run)):
                kill_session(starter)
            return False

    @in_thread
    def list(self) -> Iterable[RunSummary]:
        return list(self._summaries())

    def _summaries(self) -> Iterator[RunSummary]:
        files.opened(self._root, "")
        for path in self._root.glob("[!.]*/"):
            # It is being removed, is not a run, or is somebody else's.
            with suppress(RunNotFound, InvalidDocument, InvalidSettings, OSError):
                run = files.opened(self._root, path.name)
                found = files.read_document(run)
                try:
                    seen = run.read_headline()
                except RunNotFound:  # Its launcher has not spoken yet.
                    seen = None
                if seen is None or not (seen.phase.final or self._alive(run)):
                    seen = headline(self._observe(found).status)
                yield found.summary(seen)

    @in_thread
    def observe(self, found: RunDocument) -> Observed:
        return self._observe(found)

    def _observe(self, found: RunDocument) -> Observed:
        run, spec = files.opened(self._root, found.ref.name), found.spec
        alive = self._alive(run)
        status = run.read_status()
        if status is None:
            size, reason = run.read_size(), "the launcher is starting"
            status = Status(spec.name, spec.uid, Phase.PENDING, reason, found.created, target_size=size)
        being_created = not found.complete and utc_now() < found.created + _YOUNG
        if alive or status.phase.final or being_created:
            return Observed(status, alive)
        lost = "the launcher is gone without a final status; last line of its log"
        status = replace(
            status,
            phase=Phase.FAILED,
            failure=FailureKind.LAUNCHER_LOST,
            reason=f"{lost}: {files.last_line(run.log)!r}",
            world_size=0,
            finished=status.updated,
        )
        return Observed(status, alive)

    @in_thread
    def read_log(self, found: RunDocument, cursor: str, *, ended: bool) -> LogLines:
        lines, offset = files.read_lines(files.opened(self._root, found.ref.name).log, int(cursor), to_the_end=ended)
        return LogLines(lines, str(offset))

    @in_thread
    def scale(self, name: str) -> Scale:
        return Scale(files.opened(self._root, name).read_size())

    @in_thread
    def resize(self, found: RunDocument, scale: Scale, workers: int) -> None:
        with self._held(found) as run:
            if run.read_size() != scale.workers:
                raise Conflict(f"the size of {found.ref.name} has been changed")
            run.write_size(workers)

    @in_thread
    def reclaim(self, found: RunDocument, worker: str, grace: timedelta) -> bool:
        notice = ReclaimNotice(source="drill", deadline=utc_now() + grace)
        files.opened(self._root, found.ref.name).write_notice(worker, notice)
        return True

    @contextmanager
    def _held(self, found: RunDocument) -> Iterator[RunDir]:
        """The run, as it was found, while nobody else can change it. Raises Conflict, or RunNotFound."""
        name = found.ref.name
        files.opened(self._root, name)
        with files.deciding(self._root, name):
            run = files.opened(self._root, name)
            if files.read_document(run) != found:
                raise Conflict(f"the run {name} in {self._root} has been changed")
            yield run

    @staticmethod
    def _alive(run: RunDir) -> bool:
        """Whether there is a launcher: the one that was started, or one that somebody has started by hand."""
        starter = read_starter(run)
        # Without touching the lock of the first, which it may be about to take.
        return (starter is not None and process_lives(starter)) or run.launcher_alive()
