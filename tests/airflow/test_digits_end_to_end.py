"""The example DAG through real Airflow components: it succeeds, outlives its triggerer, and can be ended by hand."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable
from urllib.request import urlopen

import psutil
import pytest

from demo_kit.digits_run import DAG_ID, DigitsRun, Snapshot
from demo_kit.look_back import problems
from demo_kit.trainings import RayTrainings
from elastic_training.following.follow import read_line
from tests.airflow.real_airflow import Airflow

pytestmark = pytest.mark.timeout(600)

EPOCHS = 24


def trains_with(size: int, tasks: dict[str, str] | None = None) -> Callable[[Snapshot], bool]:
    """A condition: so many ranks train, and these tasks are in these states."""

    def holds(snapshot: Snapshot) -> bool:
        assert snapshot.state != "failed", f"the DAG run failed: {snapshot.tasks}"
        training = snapshot.training
        return (
            training is not None
            and training.world_size == size
            and all(snapshot.tasks.get(task) == state for task, state in (tasks or {}).items())
        )

    return holds


LATE = re.compile(r"\(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\) ")
"""Before a line that was told long after it was written."""


def assert_told_once(run: DigitsRun) -> None:
    """Every line of the training's log but housekeeping is in the task's log, as often and in the same order."""
    lines = [read_line(line) for line in run.training_log() if line.strip()]
    written = [line.text for line in lines if line.level >= logging.INFO]
    known = set(written)
    shown = [text for line in run.log_lines("train") if (text := LATE.sub("", line, count=1)) in known]
    assert len(written) > 5
    assert Counter(written) - Counter(shown) == Counter(), "lost"
    assert Counter(shown) - Counter(written) == Counter(), "repeated"
    assert shown == written


def assert_ray_leads_to_the_page(airflow: Airflow, run: DigitsRun) -> None:
    """In the metadata of the launcher's job, which Ray's dashboard shows."""
    with urlopen(f"http://{os.environ['RAY_LAB']}/api/jobs/") as answer:
        jobs = [job["metadata"] or {} for job in json.load(answer)]
    [shown] = [metadata for metadata in jobs if metadata.get("name") == run.training]
    assert (shown["dag_id"], shown["run_id"], shown["task_id"]) == (run.dag_id, run.run_id, "train")
    assert shown["page"].startswith(f"{airflow.stack.url}/elastic-training/task?dag_id={run.dag_id}&")
    with urlopen(shown["page"]) as answer:
        assert b"<title>" in answer.read()


@pytest.mark.parametrize("engine", ["horovod", pytest.param("torch", marks=pytest.mark.long)])
def test_the_run_grows_loses_a_worker_and_loses_no_sample(airflow: Airflow, engine: str) -> None:
    run = airflow.run_digits(engine, epochs=EPOCHS)
    over = run.wait_until_over(300)
    assert over.state == "success", over.tasks
    assert set(over.tasks.values()) == {"success"}
    look = run.look_back(EPOCHS)
    assert look is not None
    assert problems(look.outcome) == []
    assert look.outcome.samples_seen == EPOCHS * run.xcom("prepare")["train"]
    assert (run.xcom("train", "run_name"), run.xcom("train", "cluster")) == (
        run.training,
        run.params.get("cluster", "local"),
    )
    assert_told_once(run)
    assert airflow.training_processes() == []
    if isinstance(airflow.trainings, RayTrainings):
        assert_ray_leads_to_the_page(airflow, run)


def test_the_run_goes_on_when_its_triggerer_is_killed(airflow: Airflow) -> None:
    run = airflow.run_digits(epochs=EPOCHS, reclaim=False)
    run.wait_until(trains_with(3, {"train": "deferred", "more": "success"}), 180)
    before = {process.pid for process in airflow.training_processes()}
    airflow.stack.kill_component("triggerer")
    training = run.snapshot().training
    assert training is not None
    run.wait_until(lambda now: now.training is not None and now.training.updated > training.updated, 120)
    assert before <= {process.pid for process in airflow.training_processes()}, "the training does not notice"
    airflow.stack.start_component("triggerer")
    over = run.wait_until_over(300)
    assert over.state == "success", over.tasks
    assert over.tasks["reclaim"] == "skipped"
    look = run.look_back(EPOCHS)
    assert look is not None
    assert look.outcome.world_sizes == (2, 3)
    assert (look.outcome.samples_lost, look.outcome.samples_repeated) == (0, 0)
    assert (look.outcome.accuracy or 0.0) >= 0.97
    assert_told_once(run)


def test_marking_the_task_as_failed_ends_the_training(airflow: Airflow) -> None:
    run = airflow.run_digits(epochs=500, reclaim=False)
    run.wait_until(trains_with(3, {"train": "deferred", "more": "success"}), 180)
    trained_by = airflow.training_processes()
    assert len(trained_by) >= 4, "a launcher, and ranks"
    airflow.api.set_task_state(DAG_ID, run.run_id, "train", "failed")
    over = run.wait_until_over(90)
    assert over.state == "failed"
    assert over.tasks["train"] == "failed"
    assert over.tasks["evaluate"] == "upstream_failed"
    _, alive = psutil.wait_procs(trained_by, timeout=60)
    assert alive == [], "left running"
    assert airflow.training_processes() == []
