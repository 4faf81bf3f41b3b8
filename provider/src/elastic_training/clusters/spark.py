"""``cluster="spark://HOST:PORT/FOLDER"``: workers as tasks of a Spark cluster, with a run's documents in a folder.

The launcher is a process of Airflow's machine, as the driver of a Spark application in client mode is, and starts the
driver itself. The folder is on a file system that Airflow's machines and the cluster's see, at one path.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from elastic_runtime.documents import from_json, to_json, write_atomically
from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidSettings
from elastic_runtime.run.reading import read_bytes
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.spark.jobs import SPEC, SparkSpec
from elastic_training.clusters.claims import Times
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.folder import STARTER, FolderPlace
from elastic_training.clusters.local import TIMES, ThisMachine
from elastic_training.clusters.local_python import modules_of
from elastic_training.clusters.location import SparkName

MASTER_TIMEOUT = 10.0
"""Seconds for a connection to the master."""
STARTING = 60.0
"""Seconds for which a launcher of another machine, whose processes are not seen here, may not have its lock yet."""
_LONGEST = 1 << 20
"""Bytes of a run's :class:`SparkSpec`."""


class SparkDrivers(ThisMachine):
    """Launchers as processes of this machine, each with a driver.

    Args:
        spark: how the workers of runs that are created here are had; None: none is created.
    """

    setting = "cluster"

    def __init__(self, spark: SparkSpec | None) -> None:
        super().__init__(spark.python if spark else "")
        self._spark = spark

    @override
    def plan(self, spec: RunSpec) -> str:
        spark = self._wanted()
        return (
            f"{super().plan(spec)}; application of {spark.master} with {spark.pyspark}: an executor of {spark.cpus} "
            f"cores and {spark.memory} for each worker"
        )

    @override
    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        check_driver(self._wanted().master, self._wanted().pyspark)

    @override
    def start(self, run: RunDir, credentials: Mapping[str, str]) -> None:
        spark = self._wanted()
        exported = sorted({*spark.exported, *credentials})
        write_atomically(run.path / SPEC, to_json(replace(spark, exported=tuple(exported), machine=this_machine())))
        super().start(run, credentials)

    @override
    def alive(self, run: RunDir) -> bool:
        return super().alive(run) or _starts_elsewhere(run)

    def _wanted(self) -> SparkSpec:
        assert self._spark is not None, "a cluster that creates no runs was asked to"
        return self._spark


def this_machine() -> str:
    """Since it was booted, and by its name: containers of one machine do not see each other's processes."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{socket.gethostname()} {boot}"


def _starts_elsewhere(run: RunDir) -> bool:
    try:
        spark = from_json(SparkSpec, read_bytes(run.path / SPEC, _LONGEST))
        age = time.time() - (run.path / STARTER).stat().st_mtime
    except (ElasticError, OSError):
        return False
    return spark.machine not in ("", this_machine()) and age < STARTING


class SparkCluster(Cluster):
    """Runs in one folder, whose workers are in a Spark cluster.

    Args:
        name: of the cluster and the folder.
        spark: how workers are had; None: no run is created.
        times: for tests.
        poll: seconds between two looks at a watched run.
    """

    def __init__(
        self, name: SparkName, spark: SparkSpec | None = None, times: Times = TIMES, poll: float = 1.0
    ) -> None:
        super().__init__(FolderPlace(Path(name.folder), SparkDrivers(spark), times, poll))


def check_driver(master: str, python: str) -> None:
    """Whether a driver can be started here, and a master answers. Blocks.

    Raises:
        ClusterUnavailable: no master accepts a connection.
        InvalidSettings: the interpreter cannot be a driver's.
    """
    if not modules_of(python, ["pyspark"]):
        remedy = 'Install pyspark there, in the version of the cluster, or name one: spark=Spark(pyspark="...")'
        raise InvalidSettings("spark.pyspark", f"{python} has no pyspark", remedy)
    problems = []
    for each in master.removeprefix("spark://").split(","):
        host, _, port = each.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_TIMEOUT).close()
        except OSError as error:
            problems.append(f"{each}: {error}")
        else:
            return
    raise ClusterUnavailable(f"no master of Spark accepts connections ({'; '.join(problems)[:500]})")
