"""A long training in one DAG, and another DAG that gives it more or fewer workers while it trains.

Anything that can start a DAG can so resize a training: a schedule, an asset's event, a person. `example_resize` looks
for the training of `example_long_training` that was begun last and goes on, asks for the size, and waits until exactly
so many train.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Workers

COMMON = {"schedule": None, "tags": ["elastic-training", "example"], "doc_md": __doc__}
SIZE = {"type": "integer", "minimum": 1, "maximum": 4}

with DAG(
    "example_long_training",
    description="A training that lasts until it was given more workers",
    params={"hold_for": Param(2, description="Hold until so many ranks train.", **SIZE)},
    **COMMON,
) as training:
    ElasticTorchOperator(
        task_id="train",
        command=["python", "circle.py", "--ranks={{ params.hold_for }}"],
        scripts=["circle.py"],
        workers=Workers(min=1, max=4),
        cluster="training",
    )

with DAG(
    "example_resize",
    description="Gives the long training another size",
    params={"workers": Param(2, description="Wanted.", **SIZE)},
    **COMMON,
) as resize:
    ScaleWorkersSensor(
        task_id="resize",
        training_dag_id="example_long_training",
        training_task_id="train",
        training_run="latest",
        workers="{{ params.workers }}",
        cluster="training",
        timeout=600,
    )
