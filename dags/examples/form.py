"""A training that people start in Airflow's UI: *Trigger* shows a form, in sections, with bounds.

The form checks each value by itself. Whether they fit together (fewest ≤ first ≤ most) *train* checks before anything
is started, and fails at once with what is wrong and what to write. The section *Machines* is for pods: on this machine,
the log says that shared memory and storage are ignored.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Pods, PodShape, Workers

SIZE = {"type": "integer", "minimum": 1, "maximum": 4, "section": "Workers"}
PARAMS = {
    "epochs": Param(
        10,
        type="integer",
        minimum=1,
        maximum=100,
        title="Epochs",
        section="Training",
        description="Passes over all points.",
    ),
    "rate": Param(
        0.05,
        type="number",
        exclusiveMinimum=0,
        maximum=1,
        title="Learning rate",
        section="Training",
        description="Of AdamW, without a schedule.",
    ),
    "batch_size": Param(
        100,
        type="integer",
        enum=[50, 100, 200, 400],
        title="Batch size",
        section="Training",
        description="Points per step, over all ranks: the same, however many train.",
    ),
    "min_workers": Param(1, title="Fewest", description="With fewer it waits for others.", **SIZE),
    "start_workers": Param(2, title="First", description="To begin with.", **SIZE),
    "max_workers": Param(3, title="Most", description="That anybody may ask for while it trains.", **SIZE),
    "machine": Param(
        "any",
        type="string",
        enum=["any", "g5.xlarge", "g6.12xlarge", "p5.48xlarge", "a2-highgpu-1g"],
        title="Machine type",
        section="Machines",
        description="Of each worker, as its cloud names it. It brings its GPUs and shared memory.",
    ),
    "gpus": Param(
        0,
        type="integer",
        minimum=0,
        maximum=8,
        title="GPUs",
        section="Machines",
        description="Of each worker, a rank on each. 0: those of the machine type.",
    ),
    "shm": Param(
        "any",
        type="string",
        enum=["any", "1Gi", "8Gi", "64Gi"],
        title="Shared memory",
        section="Machines",
        description="Size of /dev/shm, for NCCL and loaders of data.",
    ),
    "storage": Param(
        "1Gi",
        type="string",
        enum=["1Gi", "20Gi", "200Gi"],
        title="Storage",
        section="Machines",
        description="Space on the node's disk for files of a worker; checkpoints are elsewhere.",
    ),
}

with DAG(
    "example_form",
    description="A training that is started from a form",
    schedule=None,
    params=PARAMS,
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    ElasticTorchOperator(
        task_id="train",
        command=[
            "python",
            "circle.py",
            "--epochs={{ params.epochs }}",
            "--rate={{ params.rate }}",
            "--batch-size={{ params.batch_size }}",
        ],
        scripts=["circle.py"],
        workers=Workers(
            min="{{ params.min_workers }}",
            start="{{ params.start_workers }}",
            max="{{ params.max_workers }}",
            machine="{{ params.machine | replace('any', '') }}",
            gpus="{{ params.gpus }}",
            shm="{{ params.shm | replace('any', '') }}",
        ),
        pods=Pods(worker=PodShape(resources={"requests": {"ephemeral-storage": "{{ params.storage }}"}})),
        cluster="training",
    )
