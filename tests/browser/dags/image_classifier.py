"""Trainings that the browser's tests look at: one alone, and two that share a pool, of different priorities."""

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import DAG

from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Workers


def train(workers: Workers, **more: Any) -> None:
    ElasticHorovodOperator(
        task_id="train",
        command=["python", "{{ params.script }}"],
        workers=workers,
        checkpoint_uri="file://{{ params.checkpoints }}",
        environment={"PACE": "{{ params.pace }}", "OMP_NUM_THREADS": "1"},
        **more,
    )


PARAMS = {"script": "", "pace": "{}", "checkpoints": ""}
with DAG("image_classifier", schedule=None, params=PARAMS):
    train(Workers(min=1, start=2, max=4), retries=1, retry_delay=timedelta(0))
with DAG("digits", schedule=None, params=PARAMS):
    train(Workers(min=1, start=3, max=3), cluster="pool:team-a", priority_weight=10)
with DAG("nightly", schedule=None, params=PARAMS):
    train(Workers(min=1, start=4, max=4), cluster="pool:team-a", priority_weight=1)
