"""Settings of workers in Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.spark.jobs import DRIVER_HOST, SparkSpec
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import Duration, IntOrTemplate, seconds_of, settings_of, whole_number

_OURS = (
    "spark.master", "spark.submit.deployMode", "spark.app.name", "spark.executor.cores", "spark.task.cpus",
    "spark.executor.memory", "spark.executor.instances", "spark.task.maxFailures", "spark.speculation",
    "spark.decommission.enabled", "spark.executor.decommission.forceKillTimeout", "spark.dynamicAllocation.enabled",
    "spark.dynamicAllocation.minExecutors", "spark.dynamicAllocation.maxExecutors",
    "spark.dynamicAllocation.initialExecutors",
)  # fmt: skip
"""Settings that the run makes itself, or that would make workers other than it expects."""
_NAME = re.compile(r"spark\.[\w.-]{1,200}")
_MEMORY = re.compile(r"[0-9]{1,9}[kmgt]")
_LONGEST, _MOST = 4096, 200


@dataclass(frozen=True, slots=True)
class Spark(Settings):
    """How the workers of a run are had from Spark. Each worker is one task, alone in its executor."""

    cpus: IntOrTemplate = 1
    """Cores of a worker: ``spark.executor.cores`` and ``spark.task.cpus``."""
    memory: str | Any = "512m"
    """Memory of an executor's JVM. Agents and ranks are outside of it."""
    grace: Duration = 30.0
    """Time that a decommissioned worker has, until its node goes."""
    python: str | Any | None = None
    """With ``elastic-runtime``, at one path on all machines. None: the connection's, or that of local runs."""
    pyspark: str | Any | None = None
    """With ``pyspark`` in the cluster's version, at one path on all machines. None: the connection's, or ``python``."""
    conf: Mapping[str, Any] | Any = field(default_factory=dict)
    """Further settings of Spark: ``{"spark.authenticate": "true"}``. They are in a file of the run."""

    def __post_init__(self) -> None:
        self.known().spec("spark://host:7077", "python", gpus=0)

    @all_known()
    def spec(self, master: str, python: str, *, gpus: int, pyspark: str | None = None) -> SparkSpec:
        """Return what the launcher needs of them. Raise InvalidSettings, also for rendered values.

        Args:
            master: URL of the master.
            python: interpreter, unless one is set.
            gpus: of a worker.
            pyspark: interpreter with pyspark, unless one is set; None: the other one.
        """
        memory = str(self.memory).lower()
        if not _MEMORY.fullmatch(memory):
            raise InvalidSettings("spark.memory", f"{self.memory!r} is not a size", 'Write it as in "512m"')
        interpreter = str(self.python or python)
        return SparkSpec(
            master=master,
            python=interpreter,
            pyspark=str(self.pyspark or pyspark or interpreter),
            cpus=whole_number("spark.cpus", self.cpus, least=1),
            gpus=gpus,
            memory=memory,
            grace=seconds_of("spark.grace", self.grace),
            conf=_conf(self.conf),
        )


def _conf(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > _MOST:
        problem = f"a {type(value).__name__} is not a mapping of at most {_MOST} settings"
        raise InvalidSettings("spark.conf", problem, f'Write {{"{DRIVER_HOST}": "10.0.0.5"}}')
    for name, said in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problem = f"{str(name)[:100]!r} is not the name of a setting of Spark"
            raise InvalidSettings("spark.conf", problem, f'Write one as "{DRIVER_HOST}"')
        if name in _OURS:
            raise InvalidSettings("spark.conf", f"{name} is set by the run itself", "Leave it out")
        if not isinstance(said, str) or len(said) > _LONGEST or set(said) & set("\n\r\0"):
            raise InvalidSettings(
                "spark.conf", f"the value of {name} is not one line of text", "Write one line of text"
            )
    return dict(value)


def spark_of(value: Spark | Mapping[str, Any] | Any) -> Any:
    """What an operator was given, as :class:`Spark`; None, or a template, as it is. Raises InvalidSettings."""
    if value is None or is_template(value):
        return value
    return settings_of(Spark, "spark", value, "Spark(cpus=4)")
