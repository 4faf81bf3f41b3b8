"""Where the DAG's training runs are, seen from outside of Airflow: their status, their log, their end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from elastic_runtime.errors import ElasticError
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.status import Status


class Trainings(Protocol):
    """One kind of cluster, as the demo and the end-to-end tests need it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """For every component of Airflow."""

    @property
    def params(self) -> Mapping[str, object]:
        """Of the DAG, where they differ from its defaults."""

    @property
    def umask(self) -> int:
        """Of every component of Airflow; under 0: ours."""

    def status(self, run: str) -> Status | None:
        """Of the run of that name; None while there is none."""

    def log(self, run: str) -> list[str]:
        """Every line of the launcher's log so far."""

    def end_all(self) -> None:
        """Have whatever still trains end: a run outlives the Airflow that has started it, on purpose."""


@dataclass(frozen=True, slots=True)
class LocalTrainings(Trainings):
    """Processes of this machine."""

    root: Path
    """Folder of the runs' folders."""
    trainer: Path
    """Interpreter of the trainer's environment."""

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        return {
            "AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON": str(self.trainer),
            "AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT": str(self.root),
        }

    @property
    @override
    def params(self) -> Mapping[str, object]:
        return {}

    @property
    @override
    def umask(self) -> int:
        return -1

    @override
    def status(self, run: str) -> Status | None:
        with suppress(ElasticError):
            return RunDir(self.root / run).read_status()
        return None

    @override
    def log(self, run: str) -> list[str]:
        return RunDir(self.root / run).log.read_text(encoding="utf-8").splitlines()

    @override
    def end_all(self) -> None:
        for path in self.root.glob("[!.]*"):
            RunDir(path).ask_to_end("the Airflow that wanted it is being stopped")


@dataclass(frozen=True, slots=True)
class SlurmTrainings(LocalTrainings):
    """Jobs of the Slurm of ``SLURM_CONF``, whose nodes see the folder."""

    @property
    @override
    def params(self) -> Mapping[str, object]:
        return {"cluster": f"slurm:{self.root}"}


@dataclass(frozen=True, slots=True)
class SparkTrainings(LocalTrainings):
    """Tasks of the Spark of ``SPARK_LAB``, by a connection."""

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        lab = json.loads(os.environ["SPARK_LAB"])
        extra = {"place": "spark", "master": lab["master"], "folder": str(self.root), "pyspark": lab["python"]}
        connection = json.dumps({"conn_type": "elastic_training", "extra": extra})
        # The form of super() without arguments does not know a class that slots have made anew.
        return {**super(SparkTrainings, self).environment, "AIRFLOW_CONN_SPARK_LAB": connection}

    @property
    @override
    def params(self) -> Mapping[str, object]:
        return {"cluster": "spark:spark_lab"}


@dataclass(frozen=True, slots=True)
class RayTrainings(LocalTrainings):
    """Actors of the Ray of ``RAY_LAB``, whose nodes see the folder."""

    @property
    @override
    def environment(self) -> Mapping[str, str]:
        extra = {"place": "ray", "address": os.environ["RAY_LAB"], "folder": str(self.root)}
        extra["python"] = os.environ["RAY_LAB_PYTHON"]
        connection = json.dumps({"conn_type": "elastic_training", "extra": extra})
        # As above. The tasks around the training run in the trainer's environment.
        return {**super(RayTrainings, self).environment, "AIRFLOW_CONN_RAY_LAB": connection}

    @property
    @override
    def params(self) -> Mapping[str, object]:
        return {"cluster": "ray_lab"}
