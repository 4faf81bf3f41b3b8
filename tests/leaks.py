"""What this process holds, and what a test has left behind: processes, threads, asyncio tasks, descriptors."""

from __future__ import annotations

import asyncio
import asyncio.runners
import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

GRACE = 6.0
"""Seconds in which a process or a thread that is ending may end."""
_PR_SET_CHILD_SUBREAPER = 36
_CLUSTER_BINARIES, _CLUSTER_STATE = "/elastic-training/kubernetes/", "/elastic-training-cluster-"
"""In the command lines of the daemons of the cluster for tests: where its programs are, and its state."""
_KINDS = ("socket:", "pipe:", "anon_inode:[eventpoll]", "anon_inode:[pidfd]")
_unfinished: list[str] = []


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An open descriptor of this process."""

    number: int
    target: str
    inheritable: bool


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds at one moment."""

    processes: frozenset[psutil.Process]
    """All descendants."""
    threads: frozenset[threading.Thread]
    descriptors: frozenset[Descriptor]


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that none escapes from view.

    An orphan that has ended is then a zombie until the test ends, or somebody waits for it.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def watch_event_loops() -> None:
    """Note the tasks that ``asyncio.run`` and ``asyncio.Runner`` cancel silently when they close."""
    runners: Any = asyncio.runners
    cancel_all: Callable[[asyncio.AbstractEventLoop], None] = runners._cancel_all_tasks

    def note_and_cancel_all(loop: asyncio.AbstractEventLoop) -> None:
        _unfinished.extend(f"asyncio task {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(loop))
        cancel_all(loop)

    runners._cancel_all_tasks = note_and_cancel_all


def holdings() -> Holdings:
    """Everything that is held now."""
    _unfinished.clear()
    return Holdings(
        frozenset(_descendants()),
        frozenset(threading.enumerate()),
        frozenset(_descriptors()),
    )


def left_behind(before: Holdings, folder: Path) -> list[str]:
    """What is held now and was not before, one line each; of files, those in ``folder``. Ends the processes."""
    found = [*_end_processes(before.processes), *_threads(before.threads)]
    if _new_descriptors(before, folder):
        gc.collect()  # What is garbage is closed by this, and warned of, which is an error of its own.
    found += [f"descriptor {d.number}: {d.target}" for d in _new_descriptors(before, folder)]
    found += _unfinished
    return found


def _end_processes(before: frozenset[psutil.Process]) -> Iterator[str]:
    # What a process of a wider fixture starts is that process's to end.
    new = [
        process
        for process in set(_descendants()) - before
        if not before.intersection(_ancestors(process)) and not _of_the_cluster(process)
    ]
    _, alive = psutil.wait_procs(new, timeout=GRACE)
    for process in alive:
        yield f"process {_described(process)}"
        process.kill()
    psutil.wait_procs(alive, timeout=GRACE)


def _descendants() -> Iterator[psutil.Process]:
    """As psutil's ``children`` finds them too, which reads of every process on the machine, for every test, twice."""
    pending = [os.getpid()]
    while pending:
        for pid in _children(pending.pop()):
            pending.append(pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                yield psutil.Process(pid)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _of_the_cluster(process: psutil.Process) -> bool:
    """What `tools/cluster` has brought back is its own to end."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return bool(command) and (_CLUSTER_BINARIES in command[0] or any(_CLUSTER_STATE in word for word in command))


def _ancestors(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.parents()
    except psutil.NoSuchProcess:
        return []


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline()) or process.name()}"
    except psutil.NoSuchProcess:
        return f"{process.pid}, which ended just now"


def _threads(before: frozenset[threading.Thread]) -> Iterator[str]:
    deadline = time.monotonic() + GRACE
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                yield f"thread {thread.name}"


def _new_descriptors(before: Holdings, folder: Path) -> list[Descriptor]:
    kinds = (*_KINDS, str(folder))
    new = set(_descriptors()) - before.descriptors
    return sorted((d for d in new if d.target.startswith(kinds)), key=lambda d: d.number)


def _descriptors() -> Iterator[Descriptor]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield Descriptor(int(name), os.readlink(f"/proc/self/fd/{name}"), os.get_inheritable(int(name)))
        except OSError:  # It was the one of listdir itself.
            continue
