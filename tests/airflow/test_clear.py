"""A training whose task is cleared, or takes too long, through Airflow's real components."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo_kit.airflow_api import AirflowApi
from demo_kit.digits_run import LOOK
from elastic_runtime.run.status import Status
from tests.airflow.real_airflow import Airflow, stack_without, trainings_of

pytestmark = pytest.mark.timeout(900)
SCRIPT = Path(__file__).parent / "scripts" / "steady.py"
TASK_TIMEOUT = 300.0
"""Seconds for what takes a few on a machine that has nothing else to do."""
DISCARDS = (3, 4)
"""From this Airflow on a clear discards the task state."""
DAG_FILE = """
from datetime import timedelta
from airflow.sdk import DAG, BaseOperator, task
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Checkpoints, Workers

SETTINGS = dict(
    task_id="train",
    command=["python", {script!r}, {folder!r}],
    workers=Workers(min=1),
    checkpoint_uri="file://{folder}/checkpoints",
    deferrable=True,
)

with DAG("cleared", schedule=None):

    @task
    def prepare():
        pass

    prepare() >> ElasticHorovodOperator(checkpoints=Checkpoints(every=3600), **SETTINGS)

with DAG("late", schedule=None):

    @task(trigger_rule="all_done")
    def branch(ti=None):
        return ti.xcom_pull(task_ids="train", key="failure")["failure"]

    ElasticHorovodOperator(execution_timeout=timedelta(seconds=40), **SETTINGS) >> branch()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By whose file ``end`` trainings end."""
    return tmp_path_factory.mktemp("folder")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow") / "home"
    (dags := tmp_path_factory.mktemp("dags")).joinpath("clear.py").write_text(
        DAG_FILE.format(script=str(SCRIPT), folder=str(folder))
    )
    trainings = trainings_of(home)
    soon = {"AIRFLOW__ELASTIC_TRAINING__CLEAR_INTERVAL": "5"}
    with stack_without((), home, trainings, dags, ("cleared", "late"), **soon) as stack, AirflowApi(stack.url) as api:
        try:
            yield Airflow(stack, api, trainings)
        finally:
            trainings.end_all()


@dataclass(frozen=True, slots=True)
class Run:
    """A DAG run."""

    airflow: Airflow
    dag_id: str
    run_id: str

    @classmethod
    def of(cls, airflow: Airflow, dag_id: str) -> Run:
        """A new one."""
        return cls(airflow, dag_id, airflow.api.trigger(dag_id, {}))

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TASK_TIMEOUT
        while not holds():
            self.airflow.stack.check()
            now = (self.airflow.api.task_states(self.dag_id, self.run_id), self.status())
            assert time.monotonic() < deadline, f"{what}: not within {TASK_TIMEOUT:.0f} s: {now}"
            time.sleep(LOOK)

    def state(self) -> str:
        return self.airflow.api.task_states(self.dag_id, self.run_id).get("train", "none")

    def status(self) -> Status | None:
        name = self.airflow.api.xcom(self.dag_id, self.run_id, "train", "run_name")
        return self.airflow.trainings.status(name) if name else None

    def trains(self, steps: int, but: str = "") -> Status:
        """Once it is deferred, and its run, not that of the uid ``but``, has done so many steps."""

        def look() -> bool:
            status = self.status()
            return status is not None and status.uid != but and (status.step or 0) >= steps and status.world_size > 0

        self.until(lambda: self.state() == "deferred" and look(), f"{steps} steps")
        status = self.status()
        assert status is not None
        return status

    def log(self, try_number: int) -> str:
        return "\n".join(self.airflow.api.log_lines(self.dag_id, self.run_id, "train", try_number))

    def succeeds(self, folder: Path, try_number: int) -> str:
        """Returns the folder of its newest checkpoint."""
        (folder / "end").touch()

        def over() -> bool:
            tasks = {each["task_id"]: each for each in self.airflow.api.task_instances(self.dag_id, self.run_id)}
            return (tasks["train"]["state"], tasks["train"]["try_number"]) == ("success", try_number)

        self.until(over, "success")
        # A clear while the scheduler marks the DAG run as a success is lost: its tasks are never scheduled.
        self.until(lambda: self.airflow.api.run_state(self.dag_id, self.run_id) == "success", "the DAG run's end")
        (folder / "end").unlink()
        result = self.airflow.api.xcom(self.dag_id, self.run_id, "train")
        assert result["steps"] > 0
        return str(result["checkpoint"]["uri"]).rpartition("/")[0]


def test_a_task_that_is_cleared_runs_again(airflow: Airflow, folder: Path) -> None:
    run = Run.of(airflow, "cleared")
    first = run.trains(40)
    airflow.api.pause("cleared", paused=True)  # No next try comes.
    airflow.api.clear("cleared", run.run_id, "train")
    run.until(lambda: not airflow.training_processes(), "the end of what nobody waits for")
    ended = airflow.trainings.status(first.run)
    assert ended is not None
    assert ended.uid == first.uid
    assert ended.checkpoint is not None
    assert ended.checkpoint.step >= 40, "it has written one before it ended"
    airflow.api.pause("cleared", paused=False)
    second = run.trains(1, but=first.uid)
    anew = airflow.api.version() >= DISCARDS
    assert second.step is not None
    assert (second.step < ended.checkpoint.step) is anew
    assert ("from the beginning" if anew else "goes on from the newest checkpoint") in run.log(2)
    airflow.api.clear("cleared", run.run_id, "train")  # And the next try comes at once.
    run.trains(1, but=second.uid)
    before = run.succeeds(folder, 3)
    airflow.api.clear("cleared", run.run_id, "prepare", include_downstream=True)
    run.trains(1)
    after = run.succeeds(folder, 4)
    assert before != after
    assert "from the beginning" in run.log(4)


def test_a_training_that_takes_too_long_tells_its_limit(airflow: Airflow) -> None:
    run = Run.of(airflow, "late")
    run.until(lambda: run.state() == "failed", "the limit")
    failure = airflow.api.xcom("late", run.run_id, "train", "failure")
    assert failure["failure"] == "execution_timeout"
    assert "execution_timeout of 0:00:40 has passed" in failure["reason"]
    run.until(lambda: airflow.api.xcom("late", run.run_id, "branch") == "execution_timeout", "the branch")
    run.until(lambda: not airflow.training_processes(), "its end")
