"""A training whose ranks take shards of the data as they are free, so that a slow one holds up the others less."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Workers

with DAG(
    "example_shards",
    description="Ranks of uneven speed that take shards of the data",
    schedule=None,
    params={
        "shards": Param(400, type="integer", minimum=1, maximum=100_000, description="Parts of the data."),
        "per_step": Param(8, type="integer", minimum=1, maximum=1000, description="Shards of a step, over all ranks."),
        "mode": Param(
            "synchronous",
            type="string",
            enum=["synchronous", "asynchronous"],
            description="Whether ranks step together.",
        ),
    },
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    ElasticTorchOperator(
        task_id="train",
        command=[
            *("python", "circle_in_shards.py"),
            *("--shards={{ params.shards }}", "--per-step={{ params.per_step }}", "--mode={{ params.mode }}"),
        ],
        scripts=["circle_in_shards.py"],
        workers=Workers(min=1, start=2, max=4),
        cluster="training",
        retries=2,
    )
