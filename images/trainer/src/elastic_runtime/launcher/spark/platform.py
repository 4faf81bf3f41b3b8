"""Platform of a run in Spark: the run's folder, on a file system that all nodes see, and tasks as workers."""

from __future__ import annotations

import re

from elastic_runtime.agent.agent import address_towards
from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.folder.platform import FolderPlatform
from elastic_runtime.launcher.jobs.workers import JobWorkers
from elastic_runtime.launcher.spark.queue import SparkQueue
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.spark.jobs import DRIVER_HOST, SPEC, SparkSpec

_WATCH_INTERVAL = 0.2
"""Seconds between two looks at the folder, which a server has: each asks it."""


class SparkPlatform(FolderPlatform):
    """Platform of a run whose workers are tasks.

    Args:
        folder: of the run.
        spec: what to run.

    Raises:
        InvalidSettings: the master cannot be reached from here.
        InvalidDocument: the run's folder does not say how workers are had.
    """

    watch_interval = _WATCH_INTERVAL

    def __init__(self, folder: RunDir, spec: RunSpec) -> None:
        spark = from_json(SparkSpec, read_bytes(folder.path / SPEC).decode())
        host = own_address(spark)
        super().__init__(folder, spec, JobWorkers(folder, spec, SparkQueue(folder, spec, spark, host)), host)


def own_address(spark: SparkSpec) -> str:
    """Return this machine's address, as the cluster reaches it: the one from which the master is reached.

    Raises:
        InvalidSettings: there is none.
    """
    if named := spark.conf.get(DRIVER_HOST):
        return named
    host, _, port = re.sub("^spark://", "", spark.master).partition(",")[0].rpartition(":")
    try:
        return address_towards(host.strip("[]"), int(port))
    except (ValueError, InvalidSettings) as error:
        remedy = f"Check its name and port, or set {DRIVER_HOST} in conf"
        raise InvalidSettings("cluster", f"the master {spark.master} cannot be reached: {error}", remedy) from error
