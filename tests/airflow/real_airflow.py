"""One real Airflow: scheduler, triggerer, DAG processor and API server, on PostgreSQL."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from demo_kit import processes
from demo_kit.airflow_api import AirflowApi
from demo_kit.airflow_stack import COMPONENTS, AirflowStack
from demo_kit.digits_run import DAG_IDS, DigitsRun, local_trainings, stack_settings
from demo_kit.trainings import RayTrainings, SlurmTrainings, SparkTrainings, Trainings
from tests.airflow.postgres import postgres

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINER = os.environ.get("ELASTIC_TRAINING_TRAINER_PYTHON") or str(REPOSITORY / ".venv-trainer" / "bin" / "python")
AIRFLOW = os.environ.get("ELASTIC_TRAINING_TEST_AIRFLOW") or sys.executable
"""Interpreter of the environment that has the Airflow to be tested."""
QUICK = {
    # A triggerer that was killed counts as gone after 6 s instead of 30, and its triggers go to the next.
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
}


class Airflow:
    """The running Airflow, and what tests do with it."""

    def __init__(self, stack: AirflowStack, api: AirflowApi, trainings: Trainings) -> None:
        self.stack = stack
        self.api = api
        self.trainings = trainings

    def run_digits(self, engine: str = "horovod", **params: object) -> DigitsRun:
        """Start a run of the DAG, by that engine."""
        return DigitsRun(self.stack, self.api, self.trainings, params, DAG_IDS[engine])

    def training_processes(self) -> list[psutil.Process]:
        """Launchers, agents and ranks that live: what this Airflow has started, and has kept its own settings from."""
        found = [
            *processes.marked(self.stack.mark),
            *(_of_jobs(self.trainings)),
        ]
        return [process for process in found if not _is_airflow(process)]


def trainings_of(home: Path) -> Trainings:
    """On this machine, or in the Slurm, Ray or Spark on it."""
    if os.environ.get("ELASTIC_TRAINING_TEST_PLACE") == "slurm":
        return SlurmTrainings(home / "training", Path(TRAINER))
    if os.environ.get("ELASTIC_TRAINING_TEST_PLACE") == "spark":
        return SparkTrainings(home / "training", Path(TRAINER))
    if os.environ.get("ELASTIC_TRAINING_TEST_PLACE") == "ray":
        return RayTrainings(home / "training", Path(TRAINER))
    return local_trainings(Path(TRAINER), home)


def _of_jobs(trainings: Trainings) -> Iterator[psutil.Process]:
    """Processes of jobs of our own Slurm, Ray or Spark."""
    match trainings:
        case SlurmTrainings():
            lab, ours = "SLURM_CONF", os.environ["SLURM_CONF"]
        case RayTrainings():
            lab, ours = "RAY_LAB", os.environ["RAY_LAB"]
        case SparkTrainings():
            lab, ours = "LAB_OF_SPARK", json.loads(os.environ["SPARK_LAB"])["settings"]
        case _:
            return
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            if environment.get(lab) == ours and _is_of_a_run(process, environment):
                yield process


def _is_of_a_run(process: psutil.Process, environment: Mapping[str, str]) -> bool:
    """Whether a process of one of them is a job's: Ray's and Spark's own have the same variables as their jobs."""
    if "SLURM_JOB_ID" in environment:
        return True
    if "LAB_OF_SPARK" in environment:
        return "SPARK_HOME" not in environment
    return "ELASTIC_RUNTIME_WORKER" in environment or any("elastic_runtime" in word for word in process.cmdline())


def _is_airflow(process: psutil.Process) -> bool:
    try:
        return "AIRFLOW_HOME" in process.environ()
    except psutil.NoSuchProcess:
        return True  # Gone by now, and so no training that is left.


@contextmanager
def stack_without(
    components: Sequence[str],
    home: Path,
    trainings: Trainings,
    dags: Path | None = None,
    dag_ids: Sequence[str] = tuple(DAG_IDS.values()),
    login: tuple[str, str] | None = None,
    **more: str,
) -> Iterator[AirflowStack]:
    """Start all else, wait until it is healthy, stop it; what was left running by then is an error.

    Args:
        components: that tests kill, and that are therefore each test's own.
        home: for its files.
        trainings: where the workers run.
        dags: folder of DAG files; None: the repository's.
        dag_ids: of DAGs that are waited for.
        login: name and password of an admin; None: everybody is one.
        more: environment of every component.
    """
    with postgres() as database:
        settings = stack_settings(Path(AIRFLOW), home, trainings, database, **QUICK, **more)
        settings = replace(settings, dags=dags or settings.dags)
        stack = AirflowStack(settings)
        try:
            stack.start([component for component in COMPONENTS if component not in components])
            with AirflowApi(stack.url, login) as api:
                for dag_id in dag_ids:
                    stack.wait_until_healthy(api, dag_id)
            yield stack
        finally:
            left = stack.stop()
        assert left == [], "these did not end by themselves"


@contextmanager
def completed(stack: AirflowStack, components: Sequence[str], trainings: Trainings) -> Iterator[Airflow]:
    """The whole Airflow, with these components and a client of its own for one test."""
    for component in components:
        stack.start_component(component)
    try:
        with AirflowApi(stack.url) as api:
            yield Airflow(stack, api, trainings)
    finally:
        try:
            trainings.end_all()
        finally:
            for component in components:
                stack.stop_component(component)
