"""A training whose workers are tasks of Spark. It lasts until a second task has given it more workers."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Spark, Workers

with DAG(
    "example_spark",
    description="Workers as tasks of Spark",
    schedule=None,
    params={
        "cluster": Param("spark://master:7077/shared/elastic", type="string", description="Master and folder."),
        "workers": Param(4, type="integer", minimum=1, maximum=8, description="To which it grows."),
    },
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    ElasticTorchOperator(
        task_id="train",
        command=["python", "circle.py", "--ranks={{ params.workers }}"],
        scripts=["circle.py"],
        workers=Workers(min=1, start=2, max=8),
        cluster="{{ params.cluster }}",
        spark=Spark(cpus=1, grace=60),
        retries=2,
    )
    ScaleWorkersSensor(
        task_id="grow",
        training_task_id="train",
        workers="{{ params.workers }}",
        cluster="{{ params.cluster }}",
    )
