"""Real Airflow and a real Kubernetes: the example DAG, and whatever may befall it on the way."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo_kit.digits_run import DAG_ID, DigitsRun
from demo_kit.kubernetes_trainings import REPOSITORY, KubernetesTrainings
from demo_kit.look_back import problems
from elastic_runtime.run.runobjects import Part
from tests.airflow.real_airflow import Airflow
from tests.airflow.test_digits_end_to_end import assert_told_once, trains_with
from tests.kubernetes_long.lives import launchers_recorded, left_over, lives

pytestmark = pytest.mark.timeout(900)

EPOCHS = 24
FOREVER = 1000
"""Epochs."""
ROUNDS = 20
ALIVE = ("Pending", "Running")
OUTAGE = 60.0
"""Seconds without an API server."""


@contextmanager
def without_api_server() -> Iterator[None]:
    """Killed at the begin, started again in the end."""
    subprocess.run(["tools/cluster", "api-down"], cwd=REPOSITORY, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["tools/cluster", "api-up"], cwd=REPOSITORY, check=True, capture_output=True)


def assert_all_is_well(run: DigitsRun, epochs: int) -> None:
    look = run.look_back(epochs)
    assert look is not None
    assert problems(look.outcome) == []
    assert look.outcome.samples_seen == epochs * run.xcom("prepare")["train"]
    assert_told_once(run)


def test_the_example_ends_as_on_this_machine_though_triggerer_scheduler_and_api_server_are_away_for_a_while(
    airflow: Airflow, trainings: KubernetesTrainings
) -> None:
    run = airflow.run_digits(epochs=EPOCHS, hold=True)
    run.wait_until(trains_with(3, {"train": "deferred", "more": "success", "reclaim": "success"}), 300)
    with without_api_server():
        airflow.stack.kill_component("triggerer")
        airflow.stack.kill_component("scheduler")
        began = time.monotonic()
        airflow.stack.start_component("scheduler")
        airflow.stack.start_component("triggerer")
        time.sleep(max(0.0, began + OUTAGE - time.monotonic()))
    over = run.wait_until_over(400)
    assert over.state == "success", over.tasks
    assert_all_is_well(run, EPOCHS)
    # Their containers have ended with the run; the kubelet of a busy machine takes them away a little later.
    run.wait_until(lambda _: trainings.pods(run.training, Part.WORKER) == [], 60)


def test_there_is_one_run_at_any_time_whatever_is_clicked(
    airflow: Airflow, trainings: KubernetesTrainings, tmp_path: Path
) -> None:
    record = tmp_path / "pods.json"
    run = airflow.run_digits(
        epochs=FOREVER, reclaim=False, start_workers=1, more_workers=1, min_workers=1, max_workers=1
    )
    with launchers_recorded(trainings, record):
        run.wait_until(trains_with(1, {"train": "deferred"}), 300)
        for turn in range(ROUNDS):
            airflow.api.clear(DAG_ID, run.run_id, "train")
            run.wait_until(lambda now: now.tasks["train"] in ("running", "deferred"), 120)
            if turn % 2:  # With and without time for the deferral and the run.
                run.wait_until(lambda now: now.tasks["train"] == "deferred", 120)
            airflow.api.set_task_state(DAG_ID, run.run_id, "train", "failed")
        airflow.api.clear(DAG_ID, run.run_id, "train")
        run.wait_until(trains_with(1, {"train": "deferred"}), 300)
        # A run that is marked before its trigger runs ends only a quarter of an hour later: Airflow tells nobody.
        run.wait_until(lambda _: trainings.watched(run.training), 60)
        airflow.api.set_task_state(DAG_ID, run.run_id, "train", "failed")
        run.wait_until(lambda now: now.training is not None and now.training.phase.final, 120)
        run.wait_until(lambda _: not any(pod.status.phase in ALIVE for pod in trainings.pods()), 60)
    at_once = lives(record)
    assert len(frozenset().union(*at_once)) > 1, "runs were replaced"
    assert max(len(uids) for uids in at_once) == 1, "no two lived at the same time"
    trainings.end_all()
    assert left_over(trainings) == []
