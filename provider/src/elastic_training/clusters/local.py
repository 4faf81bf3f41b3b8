"""``cluster="local"``: launcher and workers as processes of this machine, with their documents in a folder."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from typing_extensions import override

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import LauncherProcess, RunDir, process_stat
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.claims import Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.folder import STARTER, FolderPlace, LauncherHost
from elastic_training.clusters.local_python import NEEDED, SETTING, check_python, launcher_environment

_LONGESTSTARTER = 4096
"""Bytes."""

ROOT = "[elastic_training] local_root"
"""Option that names the folder of all runs."""
_children: list[subprocess.Popen[bytes]] = []
"""Launchers that this process has started, kept only to reap them; they outlive it as a rule."""


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
    reap_later(process)
    # Not reaped before this line, so that the process can be read even if it has ended already.
    starter = LauncherProcess.of(process.pid)
    write_atomically(run.path / STARTER, to_json(starter))
    return starter


def read_starter(run: RunDir) -> LauncherProcess | None:
    """The process that was started as launcher; None before that, or when it cannot be read."""
    try:
        return from_json(LauncherProcess, read_bytes(run.path / STARTER, _LONGESTSTARTER))
    except (ElasticError, OSError):
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


def reap_later(process: subprocess.Popen[bytes]) -> None:
    """Remember a process that outlives this one as a rule, so that it is no zombie if it does not."""
    _children.append(process)


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]


TIMES = Times(claim=90.0, order=math.inf, delete=60.0, delete_order=30.0, creation=0.0, pause=0.05)
"""A claim never kills a launcher. A creator holds the lock, so that what is read as incomplete has none any more."""


class ThisMachine(LauncherHost):
    """Launchers as processes of this machine, each in a session of its own.

    Args:
        python: their interpreter.
    """

    setting = ROOT

    def __init__(self, python: str) -> None:
        self._python = python

    @override
    def plan(self, spec: RunSpec) -> str:
        workers = spec.workers
        return (
            f"launcher: {self._python} -m elastic_runtime.launcher; "
            f"{workers.start} workers ({workers.minimum} to {workers.maximum}) with {workers.slots} slots each; "
            f"each rank: {' '.join(spec.command)}"
            f"{f'; shipped files: {spec.scripts.files}' if spec.scripts else ''}"
        )

    @override
    def check(self, spec: RunSpec) -> None:
        check_python(self._python, spec)

    @override
    def start(self, run: RunDir, credentials: Mapping[str, str]) -> None:
        try:
            start_launcher(self._python, run, credentials)
        except OSError as error:
            problem, remedy = f"{self._python} cannot be started: {error}", f"Name an interpreter with {NEEDED}"
            raise InvalidSettings(SETTING, problem, remedy) from error

    @override
    def alive(self, run: RunDir) -> bool:
        """The one that was started, or one that somebody has started by hand."""
        starter = read_starter(run)
        # Without touching the lock of the first, which it may be about to take.
        return (starter is not None and process_lives(starter)) or run.launcher_alive()

    @override
    def kill(self, run: RunDir) -> None:
        if starter := read_starter(run):
            kill_session(starter)


class LocalCluster(Cluster):
    """Runs under one folder of this machine.

    Args:
        root: folder of all runs; created when missing, and refused, whatever is asked, when others can write to it.
        python: interpreter of the launcher and, by its ``PATH``, of the ranks; has
            :data:`~elastic_training.clusters.local_python.NEEDED`.
        times: for tests.
        poll: seconds between two looks at a watched run's
    """

    def __init__(self, root: Path, python: str, times: Times = TIMES, poll: float = 0.5) -> None:
        super().__init__(FolderPlace(root, ThisMachine(python), times, poll))
