"""The launcher as a process of this machine: starting it, and telling whether it is alive."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.run.rundir import LauncherProcess, RunDir, process_stat

_STARTER = "starter.json"
_PRIVATE = ("AIRFLOW", "_AIRFLOW")

_children: list[subprocess.Popen[bytes]] = []
"""Launchers that this process has started, kept only to reap them; they outlive it as a rule."""


def launcher_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Airflow's environment without Airflow: its variables hold connections, secrets and the database's address."""
    return {name: value for name, value in environ.items() if not name.upper().startswith(_PRIVATE)}


def start_launcher(python: str, run: RunDir, credentials: Mapping[str, str] | None = None) -> LauncherProcess:
    """Start the run's launcher in a session of its own, so that no signal to Airflow's worker reaches it.

    The credentials of the checkpoint store become part of its environment, and with it of its ranks', and are written
    nowhere; only this user's processes can read them there.

    Leaves ``starter.json`` in the run's folder, the proof of life until the launcher has taken its lock.

    Raises:
        OSError: the interpreter cannot be started.
    """
    _reap()
    with run.log.open("ab") as log:
        process = subprocess.Popen(
            [python, "-m", "elastic_runtime.launcher", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=run.path,
            env={**launcher_environment(os.environ), **(credentials or {})},
            start_new_session=True,
        )
    _children.append(process)
    # Not reaped before this line, so that the process can be read even if it has ended already.
    starter = LauncherProcess.of(process.pid)
    write_atomically(run.path / _STARTER, to_json(starter))
    return starter


def read_starter(run: RunDir) -> LauncherProcess | None:
    """The process that was started as launcher; None before that, or when it cannot be read."""
    try:
        return from_json(LauncherProcess, (run.path / _STARTER).read_bytes())
    except (OSError, InvalidDocument):
        return None


def process_lives(process: LauncherProcess) -> bool:
    """Whether exactly this process, not a later one with its pid, still runs. A zombie does not."""
    _reap()
    try:
        state, started = process_stat(process.pid)
    except OSError:
        return False
    return started == process.started and state not in ("Z", "X")


def kill_session(process: LauncherProcess) -> None:
    """SIGKILL to the launcher and what shares its process group."""
    if process_lives(process):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]
