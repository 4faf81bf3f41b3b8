"""Files of the local cluster beside those of :mod:`elastic_runtime.run.rundir`.

==================  ===========================================================================================
file                meaning
==================  ===========================================================================================
``starter.json``    the process that was started as launcher (see ``local_process``)
``record.json``     who streams the log, which requests were carried out, whether the result is taken: :class:`Record`
``../.NAME.lock``   held while something is decided about the run of that name; goes with the run
==================  ===========================================================================================
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_runtime.run.rundir import RunDir
from elastic_training.clusters.document import RunDocument, StoredLogLease, read_requests
from elastic_training.clusters.local_process import read_starter

_ROOT = "[elastic_training] local_root"
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


def private_folder(path: Path) -> None:
    """Create the root of all runs, or check it as :func:`opened` does.

    Raises:
        InvalidSettings: it cannot be created, or others can write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSettings(_ROOT, f"{path} cannot be created: {error}", "Name a folder that can be") from error
    _check_private(path)


def opened(root: Path, name: str) -> RunDir:
    """The folder of a run, which need not be there. Everything that reads or writes one asks for it here.

    Whoever can write there could tell any status, and run programs as us: what others have made is not believed.

    Raises:
        InvalidSettings: the root or the run's folder is not a folder of this user alone.
    """
    for path in (root, root / name):
        with suppress(FileNotFoundError):
            _check_private(path)
    return RunDir(root / name)


def _check_private(path: Path) -> None:
    try:
        found = path.lstat()  # A link could lead elsewhere a moment later.
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidSettings(_ROOT, f"{path} cannot be looked at: {error.strerror}", "Name another folder") from error
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettings(
            _ROOT,
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
    """All that there is, as it is this moment. Raises RunNotFound, or InvalidDocument."""
    spec = run.read_spec()
    try:
        record = from_json(Record, (run.path / _RECORD).read_bytes())
    except FileNotFoundError:
        record = Record()  # Nobody has had anything to note yet.
    try:
        created, renewed = (run.path / "spec.json").stat().st_mtime, run.lease.stat().st_mtime
    except FileNotFoundError:
        raise RunNotFound(f"there is no run in {run.path} any more") from None
    return RunDocument(
        spec=spec,
        owner=run.read_owner(),
        created=datetime.fromtimestamp(created, UTC),
        renewed=datetime.fromtimestamp(renewed, UTC),
        cancelled=run.cancel.read_text(encoding="utf-8", errors="replace") if run.cancel.exists() else None,
        collected=record.collected,
        log_lease=record.log_lease,
        requests=read_requests(record.requests),
        stacks=run.stacks_asked(),
        complete=read_starter(run) is not None or run.read_status() is not None or run.launcher_alive(),
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
        with log.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(_CHUNK)
    except FileNotFoundError:
        return (), offset
    full = len(data) == _CHUNK
    end = data.rfind(b"\n") + 1
    if (end == 0 and full) or (not full and to_the_end):
        end = len(data)  # A line longer than a chunk is cut rather than held back for ever.
    lines = data[:end].decode(errors="replace").removesuffix("\n").split("\n") if end else []
    return tuple(line.removesuffix("\r") for line in lines), offset + end


def last_line(log: Path) -> str:
    """The last line that says something; empty when there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
