"""Workers of a run in Spark: how its application is set up, and why one cannot be. Pure.

A run is one application, whose driver is a child of the launcher. Each worker is one job with one task, alone in its
executor: what an executor's end or decommissioning means is then told of one worker. Settings:
`Spark Configuration <https://spark.apache.org/docs/latest/configuration.html>`_.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

SPEC = "spark.json"
"""File of the :class:`SparkSpec`, in the run's folder."""
DRIVER_HOST = "spark.driver.host"
"""Address at which executors reach the driver, and agents the launcher."""
QUICK = "-XX:TieredStopAtLevel=1"
"""Option of the JVMs of driver and executors. They start Python and wait, so that code compiled twice is of no use: a
driver is up after less than half of the processor time."""
IDLE = 15
"""Seconds after which an executor without a worker is given back."""


@dataclass(frozen=True, slots=True)
class SparkSpec:
    """How a run's workers are had from Spark."""

    master: str
    """URL of the master: ``spark://HOST:PORT``."""
    python: str
    """Interpreter of launcher and agents, the same on all machines."""
    pyspark: str
    """Interpreter with pyspark, of driver and tasks, the same on all machines."""
    cpus: int = 1
    """Of a worker."""
    gpus: int = 0
    """Of a worker."""
    memory: str = "512m"
    """Of an executor's JVM. Agents and ranks are outside of it."""
    grace: float = 30.0
    """Seconds that a decommissioned worker has."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further settings of Spark."""
    exported: tuple[str, ...] = ()
    """Names of variables of the launcher that agents have, too. Their values are in no file of the run."""
    machine: str = ""
    """On which the launcher is started."""


def configuration(spec: SparkSpec, name: str, start: int, most: int, address: str) -> dict[str, str]:
    """Return the settings of a run's application.

    Args:
        spec: how workers are had.
        name: of the run.
        start: workers that it begins with.
        most: workers that it can have.
        address: of the launcher, for the driver, too.
    """
    ours = {
        "spark.master": spec.master,
        "spark.app.name": name,
        "spark.executor.cores": str(spec.cpus),
        "spark.task.cpus": str(spec.cpus),
        "spark.executor.memory": spec.memory,
        # Before a cluster's extraJavaOptions, which stay.
        "spark.driver.defaultJavaOptions": QUICK,
        "spark.executor.defaultJavaOptions": QUICK,
        DRIVER_HOST: address,
        # Executors come for tasks that wait, and go when they have none: that is how a size becomes machines.
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": str(start),
        # One more, which takes over while another one is on its way out.
        "spark.dynamicAllocation.maxExecutors": str(most + 1),
        "spark.dynamicAllocation.executorIdleTimeout": f"{IDLE}s",
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "false",
        "spark.executor.decommission.forceKillTimeout": f"{round(spec.grace)}s",
        # A task that came again would be another worker, with the same name and none of what it had.
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.reaper.enabled": "true",
    }
    if spec.gpus:
        ours |= {f"spark.{part}.resource.gpu.amount": str(spec.gpus) for part in ("executor", "task")}
    return {**ours, **spec.conf}


REMEDIES = (
    (r"No module named '?pyspark", "it has no pyspark: install it there, in the version of the cluster", True),
    (
        r"JAVA_HOME is not set|[Jj]ava: (command )?not found|No such file or directory: 'java'",
        "there is no Java on the launcher's machine: install a JRE 17 there, or set JAVA_HOME",
        True,
    ),
    (
        r"masters are unresponsive|Failed to connect to master",
        "the master does not answer: check its address, its port and that it runs",
        False,
    ),
    (
        r"InvalidClassException|serialVersionUID",
        "its version is not the cluster's: install the pyspark of the cluster",
        True,
    ),
    (
        r"PYTHON_VERSION_MISMATCH|different (minor )?version",
        "driver and executors have different versions of Python: name one path for all in pyspark",
        True,
    ),
    (
        r"SASL|[Aa]uthentication|secret key",
        "the cluster asks for a secret: set spark.authenticate.secret in spark-defaults.conf",
        True,
    ),
    (
        r"No such file or directory",
        "a node has no such interpreter or folder: both are needed at one path on all machines",
        False,
    ),
)
"""Patterns of what Spark complains of, what helps, and whether waiting cannot. The first that matches counts."""


def why_failed(complaint: str) -> tuple[str, bool]:
    """Say what helps against what Spark complains of, and whether waiting cannot; empty: nothing is known."""
    for pattern, remedy, hopeless in REMEDIES:
        if re.search(pattern, complaint):
            return remedy, hopeless
    return "", False
