"""``cluster="slurm:/FOLDER"``: launcher and workers as jobs of Slurm, with their documents in a folder that all see.

The folder is on a file system of the cluster, mounted on the machines of Airflow, too, and belongs to the user who
submits the jobs. Slurm's commands are called here; with ``slurm:CONNECTION@/FOLDER`` over SSH, or slurmrestd is asked,
by the connection's type: ssh or http.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from typing_extensions import override

from elastic_runtime.documents import to_json, write_atomically
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.jobs import LAUNCHER, Job
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.slurm.commands import TIMEOUT, Commands, Shell, SlurmClient, on_this_machine
from elastic_runtime.slurm.jobs import SPEC, SlurmSpec, options, script, why_pending
from elastic_runtime.slurm.rest import RestAccess, RestJobs
from elastic_training.clusters.claims import Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.folder import FolderPlace
from elastic_training.clusters.jobs import TIMES, JobHost, SeenJobs, write_starter
from elastic_training.clusters.local_python import launcher_environment
from elastic_training.clusters.location import SlurmName

_ADDRESS = re.compile(r"(?:[\w.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::[0-9]{1,5})?")


class Queue(SeenJobs):
    """What Slurm tells of this user's jobs.

    Args:
        commands: of Slurm, or its API.
    """

    def __init__(self, commands: SlurmClient) -> None:
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
    def why(self, reason: str) -> str:
        return why_pending(reason)[0]

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
    """Return this process' view of the queue, by the connection that leads to Slurm, if any."""
    return Queue(ByConnection(ssh) if ssh else Commands(_here))


class ByConnection(SlurmClient):
    """Slurm by an Airflow connection: its commands over SSH, or slurmrestd if the type is ``http``.

    The connection is read for each call, since a token is replaced before it expires.

    Args:
        connection: its id.
    """

    def __init__(self, connection: str) -> None:
        self._connection = connection

    @override
    def submit(self, options: Sequence[str], script: str, variables: Mapping[str, str] | None = None) -> str:
        return self._client().submit(options, script, variables)

    @override
    def jobs(self, name: str | None = None) -> list[Job]:
        return self._client().jobs(name)

    @override
    def cancel(self, ids: Iterable[str]) -> None:
        self._client().cancel(ids)

    def _client(self) -> SlurmClient:
        from elastic_training.airflow.sdk import AirflowNotFoundException, BaseHook

        try:
            found = BaseHook.get_connection(self._connection)
        except AirflowNotFoundException:
            problem = f"there is no Airflow connection {self._connection!r}"
            raise InvalidSettings("cluster", problem, "Create one of type ssh, or of type http") from None
        except Exception as error:  # of Airflow's API, which may be away for a moment
            kind = type(error).__name__
            raise ClusterUnavailable(f"connection {self._connection!r} cannot be read: {kind}: {error}") from error
        return RestJobs(rest_access(found)) if found.conn_type == "http" else Commands(over_ssh(self._connection))


def rest_access(connection: Any) -> RestAccess:
    """Return where slurmrestd is, and who asks it, by an Airflow connection of type http.

    Raises:
        InvalidSettings: it does not say that.
    """
    scheme, address = connection.schema or "http", connection.host or ""
    if "://" in address:
        scheme, _, address = address.partition("://")
    address = address.rstrip("/") + (f":{connection.port}" if connection.port else "")
    token, user = connection.password or "", connection.login or ""
    if scheme not in ("http", "https") or not _ADDRESS.fullmatch(address) or not user or not token:
        remedy = "Write host and port of slurmrestd, the user as login, and a token of scontrol token as password"
        raise InvalidSettings("cluster", f"the connection {connection.conn_id} leads to no slurmrestd", remedy)
    return RestAccess(f"{scheme}://{address}", user, token)


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
