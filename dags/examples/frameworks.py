"""Trainings with Accelerate, DeepSpeed, Horovod, Lightning, Megatron-Core and Transformers, each a DAG of its own.

Each change of the workers asks the script to write a checkpoint and end, and starts it again, in warm processes, at
that checkpoint. Copy the script of your framework (`frameworks/train_….py`) and the lines of its DAG. The workers need
the framework in their environment, and a folder that all of them see.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Restart, Workers

PRELOADED = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "horovod": "horovod.torch",
    "lightning": "lightning",
    "megatron": "megatron.core",
    "transformers": "transformers",
}
"""What is imported before there is a rank, which makes a start in a new world quick."""

for name, module in PRELOADED.items():
    with DAG(
        f"example_{name}",
        description=f"A training with {name.title()}, restarted at its checkpoint when workers come or go",
        schedule=None,
        params={
            "steps": Param(200, type="integer", minimum=1, maximum=100_000, description="Optimizer steps."),
            "folder": Param(
                "/srv/trainings", type="string", pattern="^/", description="For checkpoints; every worker sees it."
            ),
        },
        tags=["elastic-training", "example"],
        doc_md=__doc__,
    ) as dag:
        operator = ElasticHorovodOperator if name == "horovod" else ElasticTorchOperator
        operator(
            task_id="train",
            command=[
                "python",
                f"frameworks/train_{name}.py",
                "--steps={{ params.steps }}",
                "--folder={{ params.folder }}/{{ run_id }}",
            ],
            scripts=[f"frameworks/train_{name}.py"],
            workers=Workers(min=1, start=2, max=3),
            restart=Restart(grace=60),
            environment={"ELASTIC_RUNTIME_PRELOAD": module},
            cluster="training",
        )
    globals()[dag.dag_id] = dag
