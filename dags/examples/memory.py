"""A training whose workers get more memory when they run out of it, so that a night's run does not end for want of it.

In pods, with deploy/rbac-grow-memory.yaml. Where workers are processes of one machine, they have no limit to grow.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Pods, PodShape, Recovery, Workers

QUANTITY = r"^\d+[MGT]i$"

with DAG(
    "example_memory",
    description="Workers that run out of memory get more",
    schedule=None,
    params={
        "memory": Param("2Gi", type="string", pattern=QUANTITY, description="Of each worker, at first."),
        "up_to": Param("16Gi", type="string", pattern=QUANTITY, description="Of a worker that has run out of it."),
    },
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    memory = {"memory": "{{ params.memory }}"}
    ElasticTorchOperator(
        task_id="train",
        command=["python", "circle.py"],
        scripts=["circle.py"],
        workers=Workers(min=1, start=2, max=4),
        recovery=Recovery(grow_memory=1.5, up_to="{{ params.up_to }}"),
        pods=Pods(worker=PodShape(resources={"requests": memory, "limits": memory})),
        cluster="training",
        retries=2,
    )
