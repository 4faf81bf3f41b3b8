"""Child processes that are surely gone afterwards.

Every child gets :data:`MARK` into its environment, and its own children inherit it, also those that make themselves
independent (Airflow's tasks, a run's launcher). So all that was started can be found and ended, and nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "ELASTIC_DEMO_MARK"
"""Environment variable: which stack a process belongs to."""


@dataclass(frozen=True, slots=True)
class Child:
    """One process, the leader of a session of its own, so that ctrl-C at the terminal does not reach it."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    """Its stdout and stderr."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.popen.poll()

    def log_tail(self, lines: int = 30) -> str:
        """Last lines of its log, for a message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start(name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, umask: int = -1) -> Child:
    """Start ``command``; its output is appended to ``log``. A ``umask`` under 0 is ours."""
    with log.open("ab") as stream:
        popen = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=umask,
        )
    return Child(name, popen, log)


def stop(children: Iterable[Child], grace: float) -> None:
    """SIGTERM to all at once, ``grace`` seconds for all together, then SIGKILL; returns when all are reaped."""
    children = list(children)
    for child in children:
        if child.exit_code is None:
            child.popen.terminate()
    deadline = time.monotonic() + grace
    for child in children:
        try:
            child.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.popen.pid, signal.SIGKILL)
            child.popen.wait()


def marked(mark: str) -> list[psutil.Process]:
    """Living processes that were started with this mark, zombies and this process excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end_marked(mark: str, grace: float) -> list[str]:
    """End what is left under this mark; returns the command lines of those that did not end by themselves.

    Args:
        mark: value of :data:`MARK`.
        grace: seconds for them to end by themselves, and the same again after SIGTERM.
    """
    left = _await_end(mark, grace)
    described = [f"{process.pid} {' '.join(_command_line(process))[:160]}" for process in left]
    for process in left:
        _signal(process, signal.SIGTERM)
    for process in _await_end(mark, grace) if left else ():
        _signal(process, signal.SIGKILL)
    return described


def _await_end(mark: str, seconds: float) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while left := marked(mark):
        if time.monotonic() >= deadline:
            break
        psutil.wait_procs(left, timeout=min(0.5, max(0.0, deadline - time.monotonic())))
    return left


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return ["(gone)"]


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
