"""``cluster="slurm:/FOLDER"``: launcher and workers as jobs of Slurm, with their documents in a folder that all see.

The folder is on a file system of the cluster, mounted on the machines of Airflow, too, and belongs to the user who
submits the jobs. Slurm's commands are called here, or over SSH: ``slurm:CONNECTION@/FOLDER``, with a connection of type
ssh.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from typing_extensions import override

from elastic_runtime.documents import to_json, write_atomically
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.jobs import LAUNCHER
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.slurm.commands import TIMEOUT, Commands, Shell, on_this_machine
from elastic_runtime.slurm.jobs import SPEC, SlurmSpec, options, script
from elastic_training.clusters.claims import Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.folder import FolderPlace
from elastic_training.clusters.jobs import TIMES, JobHost, SeenJobs, write_starter
from elastic_training.clusters.local_python import launcher_environment
from elastic_training.clusters.location import SlurmName


class Queue(SeenJobs):
    """What Slurm tells of this user's jobs.

    Args:
        commands: of Slurm.
    """

    def __init__(self, commands: Commands) -> None:
        super().__init__("Slurm", commands.jobs)
        self.commands = commands


class SlurmJobs(JobHost):
    """Launchers as jobs.

    Args:
        queue: of Slurm, with its commands.
        slurm: how the jobs of runs that are created here are submitted; None: none is created.
    """

    def __init__(self, queue: Queue, slurm: SlurmSpec | None) -> None:
        super().__init__(queue)
        self._commands, self._slurm = queue.commands, slurm

    @override
    def plan(self, spec: RunSpec) -> str:
        slurm, workers = self._wanted(), spec.workers
        return (
            f"launcher: sbatch {' '.join(slurm.launcher_options)} {slurm.python} -m elastic_runtime.launcher; "
            f"{workers.start} workers ({workers.minimum} to {workers.maximum}) with {workers.slots} slots each: "
            f"sbatch {' '.join(slurm.options)}; each rank: {' '.join(spec.command)}"
        )

    @override
    def check(self, spec: RunSpec) -> None:
        self._wanted()

    @override
    def start(self, run: RunDir, credentials: Mapping[str, str]) -> None:
        # Workers inherit them from the launcher's job, so their names are with the run.
        spec, slurm = run.read_spec(), replace(self._wanted(), exported=tuple(sorted(credentials)))
        write_atomically(run.path / SPEC, to_json(slurm))
        command = [slurm.python, "-m", "elastic_runtime.launcher", str(run.path)]
        submitted = time.time()
        job = self._commands.submit(options(slurm, spec, LAUNCHER, run.log), script(slurm, command), credentials)
        write_starter(run, job, submitted)

    @override
    def cancel(self, jobs: Sequence[str]) -> None:
        self._commands.cancel(jobs)

    def _wanted(self) -> SlurmSpec:
        assert self._slurm is not None, "a cluster that creates no runs was asked to"
        return self._slurm


class SlurmCluster(Cluster):
    """Runs in one folder of a Slurm cluster.

    Args:
        name: of the folder, and of the connection over which Slurm's commands are called.
        slurm: how jobs are submitted; None: no run is created.
        times: for tests.
    """

    def __init__(self, name: SlurmName, slurm: SlurmSpec | None = None, times: Times = TIMES) -> None:
        super().__init__(FolderPlace(Path(name.folder), SlurmJobs(queue_over(name.ssh), slurm), times, poll=1.0))


@cache
def queue_over(ssh: str) -> Queue:
    """Return this process' view of the queue, by the connection over which Slurm's commands are called, if any."""
    return Queue(Commands(over_ssh(ssh) if ssh else _here))


def _here(command: Sequence[str], stdin: str, variables: Mapping[str, str]) -> tuple[int, str, str]:
    return on_this_machine(command, stdin, variables, launcher_environment(os.environ))


def over_ssh(connection: str) -> Shell:
    """Return a shell on the machine of an Airflow connection of type ssh."""

    def call(command: Sequence[str], stdin: str, variables: Mapping[str, str]) -> tuple[int, str, str]:
        try:
            hook = import_module("airflow.providers.ssh.hooks.ssh").SSHHook
        except ImportError:
            problem, remedy = "the SSH provider is not installed", "Install apache-airflow-providers-ssh"
            raise InvalidSettings("cluster", problem, remedy) from None
        # In the words that the shell reads first, and not in its arguments, which anybody there can see.
        settings = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        length = len(settings.encode())
        words = f'eval "$(head -c {length})"; exec {shlex.join(command)}'
        try:
            with hook(ssh_conn_id=connection, cmd_timeout=TIMEOUT).get_conn() as client:
                sent, output, errors = client.exec_command(f"sh -c {shlex.quote(words)}", timeout=TIMEOUT)
                sent.write((settings + stdin).encode())
                sent.channel.shutdown_write()
                said, complained = output.read().decode(errors="replace"), errors.read().decode(errors="replace")
                return output.channel.recv_exit_status(), said, complained
        except Exception as error:  # of paramiko, of Airflow's hook, and of sockets
            kind = type(error).__name__
            raise ClusterUnavailable(f"{command[0]} cannot be called over {connection!r}: {kind}: {error}") from error

    return call
