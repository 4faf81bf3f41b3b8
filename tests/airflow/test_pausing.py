"""A training that is paused and resumed by tasks, while the triggerer that waits for it is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo_kit.trainings import Trainings
from elastic_runtime.run.status import EventKind, Phase, Status
from tests.airflow.real_airflow import Airflow, completed, stack_without, trainings_of
from tests.paced import PacedRun, Script, Undisturbed, has_ended

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
STEP, PAUSE = 20, 60.0
"""At which it is paused, and for how many seconds."""
TASK_TIMEOUT = 400.0
DAG_FILE = """
from airflow.sdk import DAG
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.pause_training import PauseTrainingOperator, ResumeTrainingOperator
from elastic_training.settings import Checkpoints, Workers

CLUSTER = {cluster!r}
TRAINING = dict(training_dag_id="trained", training_task_id="train", cluster=CLUSTER, deferrable=True)

with DAG("trained", schedule=None):
    for task, pace in {paces!r}.items():
        ElasticHorovodOperator(
            task_id=task,
            cluster=CLUSTER,
            command={command!r},
            workers=Workers(min=2),
            environment={{"PACE": pace, "OMP_NUM_THREADS": "1"}},
            checkpoint_uri="file://{folder}/checkpoints-" + task,
            checkpoints=Checkpoints(every=3600),
            deferrable=True,
        )

with DAG("pause", schedule=None):
    PauseTrainingOperator(task_id="ask", **TRAINING)

with DAG("resume", schedule=None):
    ResumeTrainingOperator(task_id="ask", **TRAINING)
"""


class TaskRun(PacedRun):
    """The run of a task of that DAG."""

    trainings: Trainings
    name: str
    max_wait = TASK_TIMEOUT

    def look(self) -> Status | None:
        return self.trainings.status(self.name)

    def log(self) -> str:
        return "\n".join(self.trainings.log(self.name))

    def is_over(self) -> bool:
        status = self.look()
        return status is not None and status.phase.final


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, TaskRun]:
    """By task; the ranks of ``train`` stand where the run is to be paused."""
    holds = {"train": (STEP,), "undisturbed": ()}
    return {task: TaskRun(tmp_path / task, Script("exact.py", holds=steps)) for task, steps in holds.items()}


@pytest.fixture
def airflow(tmp_path: Path, runs: dict[str, TaskRun]) -> Iterator[Airflow]:
    (dags := tmp_path / "dags").mkdir()
    paces = {task: run.script.pace(run.base) for task, run in runs.items()}
    command = list(Script("exact.py").command())
    trainings = trainings_of(tmp_path / "home")
    cluster = trainings.params.get("cluster", "local")
    text = DAG_FILE.format(paces=paces, command=command, folder=tmp_path, cluster=cluster)
    (dags / "pausing.py").write_text(text)
    with (
        stack_without(("triggerer",), tmp_path / "home", trainings, dags, ("trained", "pause", "resume")) as stack,
        completed(stack, ("triggerer",), trainings) as running,
    ):
        yield running


def wait(airflow: Airflow, look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + TASK_TIMEOUT
    while True:
        with suppress(httpx.TimeoutException):  # The machine is busy.
            if found := look():
                return found
        airflow.stack.check()
        assert time.monotonic() < deadline, f"{what}: not within {TASK_TIMEOUT:.0f} s"
        time.sleep(0.5)


def test_a_paused_training_goes_on_where_it_was_though_the_triggerer_was_killed(
    airflow: Airflow, runs: dict[str, TaskRun]
) -> None:
    train, undisturbed = runs["train"], runs["undisturbed"]
    run_id = airflow.api.trigger("trained", {})
    for task, run in runs.items():
        run.trainings = airflow.trainings
        run.name = wait(airflow, partial(airflow.api.xcom, "trained", run_id, task, "run_name"), "the run's name")
    train.at(STEP)
    undisturbed.until_status(lambda status: status.phase is Phase.SUCCEEDED, "the other one's end")
    wait(airflow, lambda: airflow.api.task_states("trained", run_id)["train"] == "deferred", "it is deferred")
    ranks = [pid for worker in train.status().workers for pid in worker.pids]

    pause = airflow.api.trigger("pause", {})
    paused = train.until_status(lambda status: status.phase is Phase.PAUSED and all(map(has_ended, ranks)), "a pause")
    wait(airflow, lambda: airflow.api.run_state("pause", pause) == "success", "the pausing task's end")
    train.go(STEP)
    airflow.stack.kill_component("triggerer")
    began = time.monotonic()
    while time.monotonic() < began + PAUSE:
        airflow.stack.check()
        status = train.status()
        assert status.phase is Phase.PAUSED
        assert all(worker.state.gone for worker in status.workers)
        time.sleep(1.0)
    airflow.stack.start_component("triggerer")

    resume = airflow.api.trigger("resume", {})
    wait(airflow, lambda: airflow.api.run_state("trained", run_id) == "success", "success")
    wait(airflow, lambda: airflow.api.run_state("resume", resume) == "success", "the resuming task's end")
    assert set(train.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    Undisturbed.by(undisturbed).assert_same(train)
    status = train.status()
    assert status.uid == paused.uid, "the same try"
    assert train.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED, EventKind.SUSPENDED) == []
    assert airflow.training_processes() == []
