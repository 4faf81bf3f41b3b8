"""What the local cluster keeps beside the files of :mod:`elastic_runtime.rundir`.

===================  ==========================================================================================
file                 meaning
===================  ==========================================================================================
``starter.json``     the process that was started as launcher (see ``local_process``)
``log_lease.json``  who streams the log, and how far: :class:`StoredLogLease`
``asked/HASH``       a size request that has been carried out
``collected``        exists once the result has been taken
``../.NAME.lock``    held while something is decided about the run of that name; never deleted
===================  ==========================================================================================
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.rundir import RunDir

_CHUNK = 256 * 1024
"""Bytes of log read at once."""


@dataclass(frozen=True, slots=True)
class StoredLogLease:
    """Content of ``log_lease.json``."""

    token: str
    cursor: str


def private_folder(path: Path) -> Path:
    """Create the root of all runs, or check that it is ours alone: whoever can write there could run programs as us.

    Raises:
        InvalidSettings: it belongs to somebody else, others may write to it, or it cannot be created.
    """
    field = "[elastic_training] local_root"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise InvalidSettings(field, f"{path} cannot be created: {error}", "Name a folder that can be") from error
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettings(
            field,
            f"{path} is not a folder of this user alone (owner {found.st_uid}, mode {stat.filemode(found.st_mode)})",
            "Name another folder, or make it yours with mode 700",
        )
    return path


@contextmanager
def deciding(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of one run name; blocks while another process or thread decides about it."""
    handle = os.open(root / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_log_lease(run: RunDir) -> StoredLogLease | None:
    """None when nobody has attended yet. Raises InvalidDocument."""
    try:
        return from_json(StoredLogLease, (run.path / "log_lease.json").read_bytes())
    except FileNotFoundError:
        return None


def write_log_lease(run: RunDir, log_lease: StoredLogLease) -> None:
    """Replace it."""
    write_atomically(run.path / "log_lease.json", to_json(log_lease))


def request_marker(run: RunDir, request: str) -> Path:
    """The file whose existence says that this request has been carried out."""
    folder = run.path / "asked"
    folder.mkdir(exist_ok=True)
    return folder / hashlib.sha256(request.encode()).hexdigest()[:16]


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
