"""A training whose launcher is a job of Ray, its workers actors. It lasts until a second task has it grow."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Ray, Workers

with DAG(
    "example_ray",
    description="Launcher as a job, workers as actors of Ray",
    schedule=None,
    params={
        "cluster": Param("ray:ray-head:8265/shared/elastic", type="string", description="Ray, and a folder of it."),
        "cpus": Param(1, type="integer", minimum=1, description="Of each worker."),
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
        ray=Ray(cpus="{{ params.cpus }}", grace=60),
        retries=2,
    )
    ScaleWorkersSensor(
        task_id="grow",
        training_task_id="train",
        workers="{{ params.workers }}",
        cluster="{{ params.cluster }}",
    )
