"""One run of a DAG of ``digits_elastic.py`` on a stack of our own: settings, start, look at it, look back on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from demo_kit.airflow_api import AirflowApi
from demo_kit.airflow_stack import AirflowStack, StackSettings
from demo_kit.look_back import LookBack, Phase, look_back, task_phases
from demo_kit.trainings import LocalTrainings, Trainings
from digits.ledger import read_entries
from elastic_runtime.run.status import Status
from elastic_training.identity.naming import run_name

REPOSITORY = Path(__file__).resolve().parents[2]
DAG_ID = "digits_elastic"
DAG_IDS = {"horovod": DAG_ID, "torch": "digits_elastic_torch"}
"""By engine."""
DEPLOYMENT = "demo"
"""Of Airflow: known here, so that the names of its runs are."""
FINAL = ("success", "failed")
LOOK = 0.7
"""Seconds between two looks at a run. Each costs Airflow's API server 50 ms of a core that the run needs, too."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How the run is doing now."""

    state: str
    """Of the DAG run."""
    tasks: Mapping[str, str]
    """State of each task."""
    training: Status | None
    """None before there is one."""


def stack_settings(
    airflow: Path, folder: Path, trainings: Trainings, database: str | None = None, **more: str
) -> StackSettings:
    """Settings of an Airflow for this DAG.

    Args:
        airflow: interpreter of Airflow's environment.
        folder: for everything that is written; emptied.
        trainings: where the workers run.
        database: SQLAlchemy URL; None: SQLite.
        more: environment of every component.
    """
    return StackSettings(
        python=airflow,
        home=folder,
        dags=REPOSITORY / "dags",
        database=database,
        environment={**trainings.environment, "AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT": DEPLOYMENT, **more},
        umask=trainings.umask,
    )


def local_trainings(trainer: Path, home: Path) -> LocalTrainings:
    """On this machine, under Airflow's own folder."""
    return LocalTrainings(home / "training", trainer)


class DigitsRun:
    """One DAG run, started by this object's making.

    Args:
        stack: healthy.
        api: of that stack.
        trainings: where the workers run.
        params: of the DAG, where they differ from its defaults.
        dag_id: one of :data:`DAG_IDS`.
    """

    def __init__(
        self,
        stack: AirflowStack,
        api: AirflowApi,
        trainings: Trainings,
        params: Mapping[str, object] | None = None,
        dag_id: str = DAG_ID,
    ) -> None:
        self.dag_id = dag_id
        self._stack = stack
        self._api = api
        self._trainings = trainings
        self.params = {"folder": str(stack.settings.home / "digits"), **trainings.params, **(params or {})}
        self.run_id = api.trigger(self.dag_id, self.params)
        self.training = run_name(self.dag_id, self.run_id, "train", deployment=DEPLOYMENT)
        self.ledger = Path(str(self.params["folder"])) / self.run_id / "ledger"

    @property
    def page(self) -> str:
        """Address of the training's task."""
        return f"{self._stack.url}/dags/{self.dag_id}/runs/{quote(self.run_id, safe='')}/tasks/train"

    def snapshot(self) -> Snapshot:
        """One look."""
        # The states first: a run that is over by then has all its states.
        state = self._api.run_state(self.dag_id, self.run_id)
        training = self._trainings.status(self.training)
        return Snapshot(state, self._api.task_states(self.dag_id, self.run_id), training)

    def wait_until(self, wanted: Callable[[Snapshot], bool], seconds: float, pause: float = LOOK) -> Snapshot:
        """The first snapshot that is as wanted.

        Raises:
            TimeoutError: none was, for so long.
            StackFailed: a component of Airflow has ended by itself.
        """
        deadline = time.monotonic() + seconds
        while True:
            self._stack.check()
            snapshot = self.snapshot()
            if wanted(snapshot):
                return snapshot
            if time.monotonic() > deadline:
                doing = snapshot.training and f"{snapshot.training.phase}, {snapshot.training.reason}"
                raise TimeoutError(
                    f"not as wanted after {seconds:.0f} s: tasks {dict(snapshot.tasks)}, training {doing}"
                )
            time.sleep(pause)

    def wait_until_over(self, seconds: float) -> Snapshot:
        """The snapshot of the DAG run's end."""
        return self.wait_until(lambda snapshot: snapshot.state in FINAL, seconds)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """What a task has pushed; None when it has not."""
        return self._api.xcom(self.dag_id, self.run_id, task_id, key)

    def training_log(self) -> list[str]:
        """Every line that the launcher has written."""
        return self._trainings.log(self.training)

    def log_lines(self, task_id: str) -> list[str]:
        """Of the first try."""
        return self._api.log_lines(self.dag_id, self.run_id, task_id)

    def look_back(self, epochs: int, before: tuple[Phase, ...] = ()) -> LookBack | None:
        """What it amounts to; None when there is no result of the training.

        Args:
            epochs: that were to be trained.
            before: phases that came before the DAG run.
        """
        shards, result, evaluation = (self.xcom(task) for task in ("prepare", "train", "evaluate"))
        entries, status = read_entries(self.ledger), self._trainings.status(self.training)
        if not (shards and result and entries and status):
            return None
        phases = (*before, *task_phases(self._api.task_instances(self.dag_id, self.run_id)))
        accuracy = evaluation["accuracy"] if evaluation else None
        return look_back(entries, shards["train"], epochs, status, accuracy, phases)
