"""Two trainings in one standing pool of this machine, of which the second has the higher priority.

`nightly` trains with all four workers. When `digits` comes, it takes three of them, and `nightly` trains on with one.
As soon as `digits` has ended, `nightly` has four again. `elastic-training pool` says who has what, and why. The pool
stays up after the DAG run, so the next one starts in warm workers: `elastic-training pool down example` ends it.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import TrainingPool, Workers

POOL = TrainingPool("example", max=4)

with DAG(
    "example_pool",
    description="Two trainings that share the warm workers of a pool, by priority",
    schedule=None,
    params={"epochs": Param(20, type="integer", minimum=1, maximum=1000, description="Passes over the data.")},
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    training = {"command": ["python", "circle.py", "--epochs={{ params.epochs }}"], "scripts": ["circle.py"]}
    ElasticTorchOperator(
        task_id="nightly", workers=Workers(min=1, start=4, max=4), cluster=POOL, priority_weight=1, **training
    )
    ElasticTorchOperator(
        task_id="digits", workers=Workers(min=2, start=3, max=3), cluster=POOL, priority_weight=10, **training
    )
