"""One training, as somebody writes it who has just installed the wheel; for Airflow 2.11 and 3."""

from __future__ import annotations

from pathlib import Path

import pendulum
from airflow.providers.common.compat.sdk import DAG

from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Workers

with DAG("wheels", schedule=None, start_date=pendulum.datetime(2026, 1, 1), catchup=False, params={"steps": 20}):
    ElasticHorovodOperator(
        task_id="train",
        command=["python", str(Path(__file__).with_name("wheels_train.py")), "{{ params.steps }}"],
        workers=Workers(min=1, start=2, max=2),
        environment={"DB_PASSWORD": "planted-secret-of-the-environment"},
        deferrable=True,
        pool="gate",
    )
