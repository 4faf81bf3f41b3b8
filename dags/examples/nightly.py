"""A training every night, with more workers while nobody else needs the machines.

The size plan is carried out by the training's launcher, also while Airflow is down: between 22:00 and 06:00 it trains
with `night_workers`, at other times with `day_workers`. A training that is not done by the morning goes on, smaller.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Recovery, SizePlan, SizeWindow, Workers

with DAG(
    "example_nightly",
    description="A training every night, whose size follows the time of day",
    schedule="0 22 * * mon-fri",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "day_workers": Param(1, type="integer", minimum=1, maximum=4, description="From 06:00 to 22:00."),
        "night_workers": Param(2, type="integer", minimum=1, maximum=4, description="From 22:00 to 06:00."),
        "hold_for": Param(1, type="integer", minimum=1, maximum=4, description="Hold until so many ranks train."),
    },
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    ElasticTorchOperator(
        task_id="train",
        command=["python", "circle.py", "--ranks={{ params.hold_for }}"],
        scripts=["circle.py"],
        workers=Workers(min=1, max=4),
        size_plan=SizePlan(
            windows=[SizeWindow(workers="{{ params.night_workers }}", start="22:00", end="06:00")],
            otherwise="{{ params.day_workers }}",
            timezone="Europe/Berlin",
        ),
        recovery=Recovery(max_wait=timedelta(minutes=30)),
        cluster="training",
        retries=2,
    )
