"""Platform on this machine: the run's folder, and :class:`~.workers.LocalWorkers`."""

from __future__ import annotations

from elastic_runtime.launcher.folder.platform import FolderPlatform
from elastic_runtime.launcher.local.workers import LocalWorkers
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec

ADDRESS = "127.0.0.1"
"""On which the launcher and its ranks listen, unless machines may join by hand."""


class LocalPlatform(FolderPlatform):
    """Platform of a run of this machine.

    Args:
        folder: of the run.
        spec: what to run.
    """

    def __init__(self, folder: RunDir, spec: RunSpec) -> None:
        super().__init__(folder, spec, LocalWorkers(folder, spec), spec.join_address or ADDRESS)
