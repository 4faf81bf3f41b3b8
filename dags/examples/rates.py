"""One training for each learning rate, mapped; *best* takes the one that is most often right."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import DAG, Param, task

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Workers

with DAG(
    "example_rates",
    description="Trainings that differ in a hyper-parameter, and the best of them",
    schedule=None,
    params={
        "rates": Param(
            [0.001, 0.05],
            type="array",
            items={"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            minItems=1,
            maxItems=8,
            description="Learning rates to try.",
        )
    },
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:

    @task
    def commands(params: dict[str, Any] | None = None) -> list[list[str]]:
        """One a training."""
        return [["python", "circle.py", f"--rate={rate}"] for rate in (params or {})["rates"]]

    @task
    def best(results: list[dict[str, Any]]) -> dict[str, Any]:
        """The result document of a training has the newest value of each metric that its script has reported."""
        first = max(results, key=lambda result: float(result["metrics"]["accuracy"]))
        return {"accuracy": first["metrics"]["accuracy"], "checkpoint": first["checkpoint"]["uri"]}

    train = ElasticTorchOperator.partial(
        task_id="train",
        scripts=["circle.py"],
        workers=Workers(min=1, max=2),
        cluster="training",
        max_active_tis_per_dagrun=2,
    ).expand(command=commands())
    best(train.output)
