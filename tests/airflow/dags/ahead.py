"""DAGs of test_ahead.py: trainings that are steered by files in the folder that the environment names."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.exceptions import AirflowFailException
from airflow.sdk import DAG, task

from elastic_training.assets import checkpoint_asset
from elastic_training.operators.capacity_decision import CapacityDecisionOperator
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.retry_policy import TrainingRetryPolicy
from elastic_training.settings import Checkpoints, Workers

FOLDER = os.environ["AHEAD_FOLDER"]
SCRIPT = os.environ["AHEAD_SCRIPT"]
SETTINGS = {
    "workers": Workers(min=1),
    "checkpoint_uri": f"file://{FOLDER}/checkpoints",
    # An evaluation that lags behind on a busy machine finds its checkpoint all the same.
    "checkpoints": Checkpoints(every=1, keep=1000),
    "deferrable": True,
    "retries": 5,
    "retry_policy": TrainingRetryPolicy(first=2),
}

with DAG("watched", schedule=None):
    ElasticHorovodOperator(
        task_id="train", command=["python", SCRIPT, FOLDER], retry_delay=timedelta(hours=1), **SETTINGS
    )

with DAG("doomed", schedule=None):
    ElasticHorovodOperator(
        task_id="train", command=["python", SCRIPT, FOLDER, 5], retry_delay=timedelta(seconds=1), **SETTINGS
    )

for name in ("evaluate", "compare"):
    with DAG(name, schedule=[checkpoint_asset(name, dag_id="watched", task_id="train", interval=1)]):

        @task
        def evaluate(triggering_asset_events=None):
            """The checkpoints that it was begun for."""
            told = [event.extra["payload"] for events in triggering_asset_events.values() for event in events]
            for each in told:
                assert Path(each["uri"].removeprefix("file://")).exists()
            return [each["step"] for each in told]

        evaluate()

with DAG("undecided", schedule=None):

    @task
    def train(ti=None):
        """As a training leaves it whose workers have stayed away."""
        ti.xcom_push(key="failure", value={"run": "r", "failure": "max_wait_exceeded", "reason": "too few", "steps": 9})
        raise AirflowFailException("too few workers")

    @task
    def small():
        """The way that is chosen."""

    @task
    def again():
        """The way that is not."""

    decide = CapacityDecisionOperator(task_id="decide", training_task_id="train", wait_on="again", fewer="small")
    train() >> decide >> [again(), small()]
