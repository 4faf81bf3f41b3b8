"""Platform of a run in Slurm: the run's folder, on a file system that all nodes see, and jobs as workers."""

from __future__ import annotations

import os
import socket

from typing_extensions import override

from elastic_runtime.documents import from_json
from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.launcher.decision.facts import LeadershipState
from elastic_runtime.launcher.folder.platform import FolderPlatform
from elastic_runtime.launcher.slurm.workers import SlurmWorkers
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.slurm.commands import Commands
from elastic_runtime.slurm.jobs import SPEC, SlurmSpec

_WATCH_INTERVAL = 0.5
"""Seconds between two looks at the folder, which a server has: each asks it."""


class SlurmPlatform(FolderPlatform):
    """Platform of a run whose launcher is a job.

    Args:
        folder: of the run.
        spec: what to run.
        commands: of Slurm.

    Raises:
        InvalidSettings: this node's address is not known.
        InvalidDocument: the run's folder does not say how jobs are submitted.
    """

    watch_interval = _WATCH_INTERVAL

    def __init__(self, folder: RunDir, spec: RunSpec, commands: Commands) -> None:
        slurm = from_json(SlurmSpec, read_bytes(folder.path / SPEC).decode())
        super().__init__(folder, spec, SlurmWorkers(folder, spec, slurm, commands), own_address(commands))
        self._taken = False

    @override
    def leadership(self) -> LeadershipState:
        return LeadershipState.ENDING if self._taken else LeadershipState.HELD

    @override
    def signalled(self, name: str) -> None:
        """Slurm takes this job: the run is not cancelled. Its next try goes on from what is handed over now."""
        self._taken = True
        self._on_change()


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
