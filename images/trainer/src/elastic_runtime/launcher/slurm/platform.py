"""Platform of a run in Slurm: the run's folder, on a file system that all nodes see, and jobs as workers."""

from __future__ import annotations

import os
import socket

from elastic_runtime.documents import from_json
from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.launcher.jobs.platform import JobPlatform
from elastic_runtime.launcher.jobs.workers import JobWorkers
from elastic_runtime.launcher.slurm.queue import SlurmQueue
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.slurm.commands import Commands
from elastic_runtime.slurm.jobs import SPEC, SlurmSpec


def slurm_platform(folder: RunDir, spec: RunSpec, commands: Commands) -> JobPlatform:
    """Return the platform of a run whose launcher is a job of Slurm.

    Args:
        folder: of the run.
        spec: what to run.
        commands: of Slurm.

    Raises:
        InvalidSettings: this node's address is not known.
        InvalidDocument: the run's folder does not say how jobs are submitted.
    """
    slurm = from_json(SlurmSpec, read_bytes(folder.path / SPEC).decode())
    workers = JobWorkers(folder, spec, SlurmQueue(spec, slurm, commands))
    return JobPlatform(folder, spec, workers, own_address(commands))


def own_address(commands: Commands) -> str:
    """Return the number of the address by which Slurm reaches this node.

    Raises:
        InvalidSettings: nobody knows it.
    """
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        name = commands.address_of(node)
    except ElasticError:
        name = node
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        problem, remedy = f"node {node} has no address that it knows itself: {error}", "Have its name in the DNS"
        raise InvalidSettings("cluster", problem, remedy) from error
