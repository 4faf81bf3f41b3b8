"""A training whose launcher and workers are jobs of Slurm. It lasts until a second task has given it more workers."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Slurm, Workers

with DAG(
    "example_slurm",
    description="Launcher and workers as jobs of Slurm",
    schedule=None,
    params={
        "cluster": Param("slurm:/shared/elastic", type="string", description="A folder that all nodes see."),
        "partition": Param("gpu", type="string", description="Of the workers."),
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
        slurm=Slurm(partition="{{ params.partition }}", grace=60),
        retries=2,
    )
    ScaleWorkersSensor(
        task_id="grow",
        training_task_id="train",
        workers="{{ params.workers }}",
        cluster="{{ params.cluster }}",
    )
