"""Runs in a folder: documents as files, and a launcher that meets Airflow's side there, wherever it runs.

Every process that can read the folder, worker or triggerer, sees the same runs. A run is built beside and renamed into
place, so it exists whole or not at all. Beside the files of :mod:`elastic_runtime.run.rundir`:

==================  ===========================================================================================
file                meaning
==================  ===========================================================================================
``starter.json``    what was started as launcher; :class:`LauncherHost` knows its content
``record.json``     who streams the log, which requests were carried out, whether the result is taken: :class:`Record`
``../.NAME.lock``   held while something is decided about the run of that name; goes with the run
==================  ===========================================================================================
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import (
    ClusterUnavailable,
    Conflict,
    ElasticError,
    FailureKind,
    InvalidDocument,
    InvalidSettings,
    RunNotFound,
)
from elastic_runtime.net.certificates import certified_address
from elastic_runtime.printable import printable
from elastic_runtime.run.headline import headline
from elastic_runtime.run.join import JoinToken, join_command, pin_of
from elastic_runtime.run.reading import last_line, open_file, read_bytes
from elastic_runtime.run.rundir import ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import MAX_REASON, Phase, Status, WorkerStatus
from elastic_runtime.run.status_failure import END_OF_LOG
from elastic_training.clusters.claims import Observed, Times
from elastic_training.clusters.document import RunDocument, StoredLogLease, read_requests
from elastic_training.clusters.place import PolledPlace, Scale, in_thread
from elastic_training.clusters.types import LogLines, RunSummary

STARTER = "starter.json"
_RECORD = "record.json"
_CHUNK = 256 * 1024
"""Bytes of log read at once."""


@dataclass(frozen=True, slots=True)
class Record:
    """Content of ``record.json``; what the launcher reads too has files of its own."""

    log_lease: StoredLogLease | None = None
    collected: bool = False
    requests: tuple[Any, ...] = ()
    """Requests for :func:`~elastic_training.clusters.document.read_requests`."""


def private_folder(path: Path, setting: str) -> None:
    """Create the root of all runs, or check it as :func:`opened` does; ``setting`` is what names it, for messages.

    Raises:
        InvalidSettings: it cannot be created, or others can write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSettings(setting, f"{path} cannot be created: {error}", "Name a folder that can be") from error
    _check_private(path, setting)


def opened(root: Path, name: str, setting: str) -> RunDir:
    """The folder of a run, which need not be there. Everything that reads or writes one asks for it here.

    Whoever can write there could tell any status, and run programs as us: what others have made is not believed.

    Raises:
        InvalidSettings: the root or the run's folder is not a folder of this user alone.
    """
    for path in (root, root / name):
        with suppress(FileNotFoundError):
            _check_private(path, setting)
    return RunDir(root / name)


def _check_private(path: Path, setting: str) -> None:
    try:
        found = path.lstat()  # A link could lead elsewhere a moment later.
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidSettings(
            setting, f"{path} cannot be looked at: {error.strerror}", "Name another folder"
        ) from error
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettings(
            setting,
            f"{path} is not a folder of this user alone (owner {found.st_uid}, mode {stat.filemode(found.st_mode)}), "
            "so nothing in it is believed",
            "Find out who made it, then remove it, make it yours with mode 700, or name another folder",
        )


@contextmanager
def deciding(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of one run name; blocks while another process or thread decides about it."""
    while (handle := _locked(_lock(root, name))) is None:
        pass  # Who held it has removed the run, and the file with it.
    try:
        yield
    finally:
        os.close(handle)


def _lock(root: Path, name: str) -> Path:
    return root / f".{name}.lock"


def _locked(path: Path) -> int | None:
    """A descriptor of the file, locked; None when it is that file no more."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
    except BaseException:  # An interrupt, too: nobody else knows of the descriptor.
        os.close(handle)
        raise
    os.close(handle)
    return None


def remove(root: Path, name: str) -> None:
    """Remove a run's folder, and its lock, which the caller holds, and gives up by that."""
    discard(root / name)
    _lock(root, name).unlink(missing_ok=True)


def read_document(run: RunDir) -> RunDocument:
    """All that there is, as it is this moment. Raises RunNotFound, InvalidDocument, or ClusterUnavailable."""
    spec = run.read_spec()
    if spec.name != run.path.name:  # What is decided about that run would be done to another one.
        raise InvalidDocument(f"{run.path} has the documents of the run {printable(spec.name)}")
    try:
        record = from_json(Record, read_bytes(run.path / _RECORD))
    except RunNotFound:
        record = Record()  # Nobody has had anything to note yet.
    try:
        created, renewed = (run.path / "spec.json").stat().st_mtime, run.lease.stat().st_mtime
    except FileNotFoundError:
        raise RunNotFound(f"the run in {run.path} has been deleted") from None
    return RunDocument(
        spec=spec,
        owner=run.read_owner(),
        created=datetime.fromtimestamp(created, UTC),
        renewed=datetime.fromtimestamp(renewed, UTC),
        cancelled=run.asked_to_end(),
        collected=record.collected,
        log_lease=record.log_lease,
        requests=read_requests(record.requests),
        stacks=run.stacks_asked(),
        complete=(run.path / STARTER).exists() or run.read_status() is not None or run.launcher_alive(),
    )


def write_document(run: RunDir, found: RunDocument, wanted: RunDocument) -> None:
    """Write what has changed; the caller holds the lock, and has just read what is found."""
    record = Record(wanted.log_lease, wanted.collected, wanted.requests)
    if record != Record(found.log_lease, found.collected, found.requests):
        write_atomically(run.path / _RECORD, to_json(record))
    if wanted.owner != found.owner:
        run.write_owner(wanted.owner)
    if wanted.cancelled is not None:
        run.ask_to_end(wanted.cancelled)
    if wanted.stacks is not None and wanted.stacks != found.stacks:
        run.ask_for_stacks(wanted.stacks)
    if wanted.watched:
        run.watched.touch()
    else:
        run.watched.unlink(missing_ok=True)
    if wanted.renewed != found.renewed:
        os.utime(run.lease)


def discard(path: Path) -> None:
    """Remove a run's folder. It vanishes at once under its own name, whatever still writes into it."""
    trash = path.with_name(f".trash.{path.name}.{os.urandom(6).hex()}")
    try:
        path.rename(trash)
    except FileNotFoundError:
        return
    # A rank that ends only now may still create files; what it leaves is rubbish in a folder named so.
    shutil.rmtree(trash, ignore_errors=True)


def read_lines(log: Path, offset: int, *, to_the_end: bool) -> tuple[tuple[str, ...], int]:
    """Whole lines behind ``offset``, at most one chunk, and the offset behind them.

    Args:
        log: the file, which need not exist yet.
        offset: in bytes.
        to_the_end: nobody writes any more, so that an unfinished last line counts too.
    """
    try:
        with open_file(log) as stream:
            stream.seek(offset)
            data = stream.read(_CHUNK)
    except RunNotFound:
        return (), offset
    full = len(data) == _CHUNK
    end = data.rfind(b"\n") + 1
    if (end == 0 and full) or (not full and to_the_end):
        end = len(data)  # A line longer than a chunk is cut rather than held back for ever.
    lines = data[:end].decode(errors="replace").removesuffix("\n").split("\n") if end else []
    return tuple(line.removesuffix("\r") for line in lines), offset + end


_YOUNG = timedelta(minutes=1)
"""A run without a launcher is said to be pending for so long, as one that is just being created."""


class LauncherHost(Protocol):
    """What starts the launchers of runs in a folder. All methods block."""

    setting: str
    """What names the folder, for messages."""

    def plan(self, spec: RunSpec) -> str:
        """Describe the launcher and the workers that a run would have. Raise InvalidSettings if there can be none."""

    def check(self, spec: RunSpec) -> None:
        """Raise InvalidSettings if a launcher cannot run that, or ClusterUnavailable."""

    def start(self, run: RunDir, credentials: Mapping[str, str]) -> None:
        """Start the run's launcher, and leave :data:`STARTER` in its folder.

        Args:
            run: laid down whole.
            credentials: variables for its ranks. They are secret: in nothing that another user can read.

        Raises:
            InvalidSettings: it can never be started.
            ClusterUnavailable: it cannot now.
        """

    def alive(self, run: RunDir) -> bool:
        """Whether there is a launcher, or will be."""

    def waits(self, run: RunDir) -> str:  # noqa: ARG002  # for hosts that have a queue
        """Why there is no launcher yet, for people; empty: there is one, or nobody knows. A call of the moment."""
        return ""

    def kill(self, run: RunDir) -> None:
        """End a launcher that does not end in order, or has not begun."""

    def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:  # noqa: ARG002  # for hosts on other machines
        """As :meth:`~elastic_training.clusters.place.Place.shell_in`."""
        return ()

    def tidy(self, run: RunDir) -> None:  # noqa: ARG002  # for hosts whose workers can outlive it
        """End what a launcher that is gone has left; by default that ends with it."""
        return


class FolderPlace(PolledPlace):
    """See this module. Each call is in a thread, as all of them block.

    Args:
        root: folder of all runs; created when missing, and refused, whatever is asked, when others can write to it.
        host: of their launchers.
        times: how patient.
        poll: seconds between two looks at a watched run.
    """

    def __init__(self, root: Path, host: LauncherHost, times: Times, poll: float) -> None:
        self._root = root
        self._host = host
        self._credentials: Mapping[str, str] = {}
        self.times = times
        self.poll = poll

    @override
    @property
    def where(self) -> str:
        return f"in {self._root}"

    @override
    def worker_log(self, name: str, worker: str) -> str:
        return f"{RunDir(self._root / name).log}, the lines with {worker}"

    @override
    def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:
        return self._host.shell_in(worker)

    @override
    def set_rank_credentials(self, credentials: Mapping[str, str]) -> None:
        self._credentials = dict(credentials)

    @override
    async def plan(self, spec: RunSpec) -> str:
        return f"folder {self._root / spec.name}; {await asyncio.to_thread(self._host.plan, spec)}"

    @override
    @in_thread
    def read(self, name: str) -> RunDocument | None:
        run = self._opened(name)
        if not run.exists():  # So that asking about what never was leaves no lock file.
            return None
        with deciding(self._root, name):
            return read_document(run) if run.exists() else None

    @override
    @in_thread
    def create(self, spec: RunSpec, owner: str) -> RunDocument:
        private_folder(self._root, self._host.setting)
        self._host.check(spec)
        with deciding(self._root, spec.name):
            run = self._opened(spec.name)
            building = self._opened(f".new.{spec.name}.{spec.uid}")
            if run.exists() and run.read_spec().uid != spec.uid:
                raise Conflict(f"there is a run {spec.name} in {self._root}")
            try:
                building.create(spec, owner)
                discard(run.path)
                building.path.rename(run.path)
            except OSError as error:
                discard(building.path)
                raise ClusterUnavailable(f"cannot lay the run {spec.name} down in {self._root}: {error}") from error
            try:
                self._host.start(run, self._credentials)
            except ElasticError:
                discard(run.path)
                raise
            return read_document(run)

    @override
    @in_thread
    def change(self, found: RunDocument, wanted: RunDocument) -> RunDocument:
        with self._held(found) as run:
            write_document(run, found, wanted)
            if wanted.cancelled is not None and found.cancelled is None and self._host.waits(run):
                with suppress(ElasticError):  # It would begin one day, only to end, and keep the name until then.
                    self._host.kill(run)
            return read_document(run)

    @override
    @in_thread
    def remove(self, found: RunDocument, *, forced: bool) -> bool:
        with self._held(found) as run:
            if not self._host.alive(run):
                self._host.tidy(run)
                remove(self._root, found.ref.name)
                return True
            run.ask_to_end("the run is deleted")
            if forced:
                self._host.kill(run)
            return False

    @override
    @in_thread
    def list(self) -> Iterable[RunSummary]:
        return list(self._summaries())

    def _summaries(self) -> Iterator[RunSummary]:
        self._opened("")
        for path in self._root.glob("[!.]*/"):
            # It is being removed, is not a run, or is somebody else's.
            with suppress(ElasticError, OSError):
                run = self._opened(path.name)
                found = read_document(run)
                if not self._lists(found):
                    continue
                try:
                    seen = run.read_headline()
                except RunNotFound:  # Its launcher has not spoken yet.
                    seen = None
                if seen is None or not (seen.phase.final or self._host.alive(run)):
                    seen = headline(self._observe(found).status)
                yield found.summary(seen)

    def _lists(self, found: RunDocument) -> bool:  # noqa: ARG002  # for places that have some of them
        return True

    @override
    @in_thread
    def observe(self, found: RunDocument) -> Observed:
        return self._observe(found)

    def _observe(self, found: RunDocument) -> Observed:
        run, spec = self._opened(found.ref.name), found.spec
        alive = self._host.alive(run)
        status = run.read_status()
        if status is None:
            size, reason = run.read_size(), self._host.waits(run) or "the launcher is starting"
            status = Status(spec.name, spec.uid, Phase.PENDING, reason, found.created, target_size=size)
        being_created = not found.complete and utc_now() < found.created + _YOUNG
        if alive or status.phase.final or being_created:
            return Observed(status, alive)
        lost, last = "the launcher is gone without a final status", printable(last_line(run.log), MAX_REASON)
        status = replace(
            status,
            phase=Phase.FAILED,
            failure=FailureKind.LAUNCHER_LOST,
            reason=f"{lost}{END_OF_LOG}{last}" if last else lost,
            world_size=0,
            finished=status.updated,
        )
        return Observed(status, alive)

    @override
    @in_thread
    def tidy(self, found: RunDocument) -> None:
        run = self._opened(found.ref.name)
        if not self._host.alive(run):
            self._host.tidy(run)

    @override
    @in_thread
    def read_log(self, found: RunDocument, cursor: str, *, ended: bool) -> LogLines:
        lines, offset = read_lines(self._opened(found.ref.name).log, int(cursor), to_the_end=ended)
        return LogLines(lines, str(offset))

    @override
    @in_thread
    def scale(self, name: str) -> Scale:
        return Scale(self._opened(name).read_size())

    @override
    @in_thread
    def resize(self, found: RunDocument, scale: Scale, workers: int) -> None:
        with self._held(found) as run:
            if run.read_size() != scale.workers:
                raise Conflict(f"the size of {found.ref.name} has been changed")
            run.write_size(workers)

    @override
    @in_thread
    def join_command(self, found: RunDocument, lifetime: timedelta) -> str:
        run, name, join = self._opened(found.ref.name), found.ref.name, found.spec.join
        assert join is not None
        try:
            certificate = run.launcher_certificate()
            token, address = JoinToken.create(pin_of(certificate)), certified_address(certificate)
            run.offer_token(token.digest, utc_now(), lifetime)
        except (RunNotFound, OSError):
            raise Conflict(f"no launcher of the run {name} listens now; try again") from None
        return join_command(name, address, join.port, token.text())

    @override
    @in_thread
    def reclaim(self, found: RunDocument, worker: str, grace: timedelta) -> bool:
        notice = ReclaimNotice(source="drill", deadline=utc_now() + grace)
        self._opened(found.ref.name).write_notice(worker, notice)
        return True

    def _opened(self, name: str) -> RunDir:
        return opened(self._root, name, self._host.setting)

    @contextmanager
    def _held(self, found: RunDocument) -> Iterator[RunDir]:
        """The run, as it was found, while nobody else can change it. Raises Conflict, or RunNotFound."""
        name = found.ref.name
        self._opened(name)
        with deciding(self._root, name):
            run = self._opened(name)
            if read_document(run) != found:
                raise Conflict(f"the run {name} in {self._root} has been changed")
            yield run
