"""Every example DAG through one real Airflow, deferred, to its success."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from demo_kit.airflow_api import AirflowApi
from demo_kit.airflow_stack import AirflowStack
from demo_kit.digits_run import DEPLOYMENT, FINAL, LOOK
from elastic_runtime.run.status import Status
from elastic_training.identity.naming import run_name
from tests.airflow.real_airflow import REPOSITORY, Airflow, stack_without, trainings_of

pytestmark = pytest.mark.timeout(600)
DAG_IDS = (
    *("example_nightly", "example_form", "example_rates", "example_shards"),
    *("example_long_training", "example_resize", "example_spot"),
)
EXAMPLE_TIMEOUT = 400.0
"""Seconds for what takes a few on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    folder = tmp_path_factory.mktemp("airflow")
    connection = {"place": "local", "checkpoint_uri": f"file://{folder}/checkpoints"}
    more = {
        "AIRFLOW_CONN_TRAINING": json.dumps({"conn_type": "elastic_training", "extra": connection}),
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
    }
    home = folder / "home"
    with stack_without((), home, trainings_of(home), REPOSITORY / "dags" / "examples", DAG_IDS, **more) as running:
        yield running


@pytest.fixture(scope="module")
def airflow(stack: AirflowStack) -> Iterator[Airflow]:
    trainings = trainings_of(stack.settings.home)
    with AirflowApi(stack.url) as api:
        try:
            yield Airflow(stack, api, trainings)
        finally:
            trainings.end_all()


class Run:
    """One run of an example, started by this object's making."""

    def __init__(self, airflow: Airflow, dag_id: str, **params: object) -> None:
        self.airflow, self.dag_id = airflow, dag_id
        self.run_id = airflow.api.trigger(dag_id, params)

    def status(self, task: str = "train") -> Status | None:
        """Of its training."""
        return self.airflow.trainings.status(run_name(self.dag_id, self.run_id, task, deployment=DEPLOYMENT))

    def xcom(self, task: str = "train", key: str = "return_value") -> Any:
        """What a task has left."""
        return self.airflow.api.xcom(self.dag_id, self.run_id, task, key)

    def tasks(self) -> dict[str, str]:
        """Their states."""
        return self.airflow.api.task_states(self.dag_id, self.run_id)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait; a run that is over before is a failure."""
        deadline = time.monotonic() + EXAMPLE_TIMEOUT
        while not holds():
            self.airflow.stack.check()
            state = self.airflow.api.run_state(self.dag_id, self.run_id)
            assert state not in FINAL or holds(), f"{what}: not before the run was {state}: {self.tasks()}"
            assert time.monotonic() < deadline, (
                f"{what}: not within {EXAMPLE_TIMEOUT:.0f} s: {self.tasks()}, {self.status()}"
            )
            time.sleep(LOOK)

    def over(self) -> str:
        """How it ends."""
        self.until(lambda: self.airflow.api.run_state(self.dag_id, self.run_id) in FINAL, "the end")
        return self.airflow.api.run_state(self.dag_id, self.run_id)


@pytest.fixture(scope="module")
def runs(airflow: Airflow) -> dict[str, Run]:
    """Begun together, as most of their time is Airflow's and torch's start: those that need nobody while they train."""
    return {
        "nightly": Run(airflow, "example_nightly", day_workers=2, night_workers=2, hold_for=2),
        "rates": Run(airflow, "example_rates", rates=[0.0001, 0.05]),
        "form": Run(airflow, "example_form", min_workers=3, start_workers=2),
        "spot": Run(airflow, "example_spot"),
        "shards": Run(airflow, "example_shards"),
    }


def test_the_nightly_training_has_the_size_of_its_plan(runs: dict[str, Run]) -> None:
    run = runs["nightly"]
    assert run.over() == "success", run.tasks()
    assert run.xcom()["world_sizes"][-1] == 2, "nobody but the plan asks for more than one"


def test_the_best_of_several_rates_is_found(runs: dict[str, Run]) -> None:
    run = runs["rates"]
    assert run.over() == "success", run.tasks()
    best = run.xcom("best")
    assert best["accuracy"] > 0.9, "0.0001 does not come so far"
    assert Path(best["checkpoint"].removeprefix("file://")).is_dir()


def test_ranks_take_shards(runs: dict[str, Run]) -> None:
    run = runs["shards"]
    assert run.over() == "success", run.tasks()
    assert run.xcom()["steps"] == 50


def test_another_dag_gives_a_training_more_workers(airflow: Airflow) -> None:
    training = Run(airflow, "example_long_training", hold_for=3)
    resize = Run(airflow, "example_resize", workers=2)
    assert resize.over() == "success", resize.tasks()
    assert resize.xcom("resize")["world_size"] == 2
    Run(airflow, "example_resize", workers=3)  # Whose training may be over, and gone, before it looks again.
    assert training.over() == "success", training.tasks()
    assert training.xcom()["world_sizes"] == [1, 2, 3]


def test_a_training_moves_when_spot_capacity_stays_away(airflow: Airflow) -> None:
    # It holds for a third rank, which nobody asks for: it is not over before its worker is taken.
    run = Run(airflow, "example_spot", max_wait=0.05, checkpoint_every=1, hold_for=3)
    run.until(lambda: (status := run.status("spot")) is not None and status.checkpoint is not None, "a checkpoint")
    status = run.status("spot")
    assert status is not None
    for pid in status.workers[-1].pids:
        with suppress(ProcessLookupError):  # A rank ends with its agent.
            os.kill(pid, signal.SIGKILL)
    assert run.over() == "success", run.tasks()
    failed, moved = run.xcom("spot", "failure"), run.xcom("on_demand")
    assert (failed["failure"], failed["world_sizes"][0]) == ("max_wait_exceeded", 2)
    assert moved["world_sizes"] == [1]
    assert moved["steps"] >= failed["checkpoint"]["step"] > 0
    assert run.tasks() == {"spot": "failed", "capacity": "success", "on_demand": "success", "evaluate": "success"}
    assert run.xcom("evaluate") > 0.9


def test_a_training_that_is_not_disturbed_stays_on_spot_capacity(runs: dict[str, Run]) -> None:
    run = runs["spot"]
    assert run.over() == "success", run.tasks()
    assert run.tasks() == {"spot": "success", "capacity": "success", "on_demand": "skipped", "evaluate": "success"}


def test_values_of_the_form_that_do_not_fit_together_start_nothing(airflow: Airflow, runs: dict[str, Run]) -> None:
    run = runs["form"]
    assert run.over() == "failed"
    assert run.status() is None
    path = f"/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/train/logs/1"
    log = airflow.api._call("GET", path, headers={"Accept": "application/json"})
    assert "workers.min: 3 is more than workers.start, which is 2" in str(log)
