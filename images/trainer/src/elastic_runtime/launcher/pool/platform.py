"""Platform of a run whose workers are of a standing pool: documents as on this machine, workers from its keeper."""

from __future__ import annotations

from elastic_runtime.launcher.folder.platform import FolderPlatform
from elastic_runtime.launcher.local.platform import ADDRESS
from elastic_runtime.launcher.pool.workers import PoolWorkers
from elastic_runtime.pool.folder import pool_folder
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec


class PoolPlatform(FolderPlatform):
    """Platform of a run in a pool, whose folder is beside that of the run.

    Args:
        folder: of the run.
        spec: what to run.
        pool: its place in the pool.
    """

    def __init__(self, folder: RunDir, spec: RunSpec, pool: PoolSpec) -> None:
        place = pool_folder(folder.path.parent, pool.name)
        workers = PoolWorkers(folder, spec, pool, place, lambda: self._on_change())  # noqa: PLW0108  # it changes in open()
        super().__init__(folder, spec, workers, spec.join_address or ADDRESS)
