"""One training, as somebody writes it who has just installed the wheel; for Airflow 2.11 and 3."""

from __future__ import annotations

import os
from pathlib import Path

import pendulum

try:
    from airflow.sdk import DAG
except ImportError:  # Airflow 2
    from airflow import DAG

from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Workers

with DAG("wheels", schedule=None, start_date=pendulum.datetime(2026, 1, 1), catchup=False, params={"steps": 20}):
    ElasticHorovodOperator(
        task_id="train",
        command=["python", str(Path(__file__).with_name("wheels_train.py")), "{{ params.steps }}"],
        workers=Workers(min=1, start=2, max=2),
        environment={"DB_PASSWORD": "planted-secret-of-the-environment"},
        checkpoint_uri=f"file://{os.environ['AIRFLOW_HOME']}/checkpoints",
        deferrable=True,
        pool="gate",
    )
