"""A training on spot capacity that goes on with on-demand capacity once spot stays away for too long.

*spot* trains where the cloud may take the machines back. When fewer than two workers were there for `max_wait` seconds
it fails with `max_wait_exceeded`; *capacity* sees that, and *on_demand* goes on from the newest checkpoint. Another
failure is one of the script or of the site, which other machines do not cure: then the run fails.

Where workers are processes of one machine, no cloud takes them; end one by hand to see it.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import DAG, AirflowFailException, Param, task

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Checkpoints, Recovery, Workers

NO_CAPACITY = ("max_wait_exceeded", "start_timeout")

with DAG(
    "example_spot",
    description="Spot capacity first, on-demand capacity when it stays away",
    schedule=None,
    params={
        "max_wait": Param(
            900, type="number", exclusiveMinimum=0, description="Seconds with too few workers, before it moves."
        ),
        "checkpoint_every": Param(60, type="number", minimum=1, maximum=3600, description="Seconds."),
        "hold_for": Param(
            1, type="integer", minimum=1, maximum=4, description="Hold *spot* until so many ranks train."
        ),
    },
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    spot = ElasticTorchOperator(
        task_id="spot",
        command=["python", "circle.py", "--ranks={{ params.hold_for }}"],
        scripts=["circle.py"],
        workers=Workers(min=2, spot=True),
        checkpoints=Checkpoints(every="{{ params.checkpoint_every }}"),
        recovery=Recovery(max_wait="{{ params.max_wait }}"),
        cluster="training",
    )

    @task.branch(trigger_rule="all_done")
    def capacity(ti: Any = None) -> str:
        """Where to go on. A failed training leaves its result document under the key `failure`."""
        result = ti.xcom_pull(task_ids="spot", key="failure")
        if result is None:
            return "evaluate"
        if result["failure"] not in NO_CAPACITY:
            raise AirflowFailException(f"not for want of capacity, but {result['failure']}: {result['reason']}")
        return "on_demand"

    on_demand = ElasticTorchOperator(
        task_id="on_demand",
        command=["python", "circle.py"],
        scripts=["circle.py"],
        workers=Workers(min=1),
        continues="spot",
        cluster="training",
    )

    @task(trigger_rule="none_failed_min_one_success")
    def evaluate(ti: Any = None) -> float:
        """Of whichever training has come to its end."""
        results = [each for each in ti.xcom_pull(task_ids=["spot", "on_demand"]) if each]
        return float(results[-1]["metrics"]["accuracy"])

    branch = capacity()
    spot >> branch >> [on_demand, (evaluated := evaluate())]
    on_demand >> evaluated
