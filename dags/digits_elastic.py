"""Train a network on handwritten digits while the number of workers changes.

*prepare* writes scikit-learn's bundled digits as a train and a test shard. *train* starts with two workers; while it
runs, *more* raises them to three and *reclaim* sends one of them the notice that a cloud sends before it takes a spot
instance. *evaluate* loads the checkpoint that *train* has left and fails the run under `min_accuracy`.

The tasks around the training run in the trainer's environment (`[elastic_training] local_python`); Airflow's own needs
neither torch nor scikit-learn. The ranks of *train* run in that environment, too, or in pods of the image that
`make image` builds, when `cluster` names an Airflow connection to Kubernetes. The pods then see `folder` at the same
path, through the claim that `claim` names.

There are two DAGs of it: `digits_elastic` trains with Elastic Horovod, `digits_elastic_torch` with torch.distributed.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import DAG, AirflowSkipException, Param, conf, task

from elastic_training import __version__
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.operators.reclaim_worker import ReclaimWorkerOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Checkpoints, Pods, PodShape, Recovery, Volume, Workers

LIBRARY = str(Path(__file__).parent)
"""Where the package `digits` lies. Airflow 2 does not put the folder of the DAGs on the path of `external_python`."""
TRAINER_PYTHON = conf.get("elastic_training", "local_python", fallback="") or sys.executable
DEFAULT_FOLDER = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "digits"

RUN_FOLDER = "{{ params.folder }}/{{ run_id }}"
"""Each run of the DAG has its own: a second one must not count the samples of the first."""
SHARDS = f"{RUN_FOLDER}/shards"
CODE = f"{RUN_FOLDER}/code"
"""Travels with the data, so that workers on other machines need nothing of this one but the folder."""
RELEASED = f"{RUN_FOLDER}/released"
"""File that ends the hold."""

PARAMS = {
    "folder": Param(
        str(DEFAULT_FOLDER),
        type="string",
        pattern="^/",
        description="Folder of shards, sample ledgers and checkpoints, one subfolder per run.",
    ),
    "cluster": Param(
        "local", type="string", minLength=1, description="`local`, or a Kubernetes: `CONNECTION[/NAMESPACE]`."
    ),
    "image": Param(
        f"localhost/elastic-training/trainer:{__version__}",
        type="string",
        minLength=1,
        description="Of the pods; not used on this machine.",
    ),
    "claim": Param("digits", type="string", minLength=1, description="PersistentVolumeClaim that holds the folder."),
    "worker_template": Param(
        "", type="string", description="Path of a YAML file with a pod that the workers' are built upon; empty: none."
    ),
    "min_workers": Param(1, type="integer", minimum=1, maximum=16, description="Fewest workers that train."),
    "start_workers": Param(2, type="integer", minimum=1, maximum=16, description="Workers to begin with."),
    "max_workers": Param(3, type="integer", minimum=1, maximum=16, description="Most workers that may be asked for."),
    "more_workers": Param(3, type="integer", minimum=1, maximum=16, description="Workers asked for while it trains."),
    "reclaim": Param(True, type="boolean", description="Send a reclaim notice to one worker while it trains."),
    "reclaim_grace": Param(
        30, type="number", minimum=1, maximum=600, description="Seconds from that notice until the worker is gone."
    ),
    "hold": Param(True, type="boolean", description="Hold in the last epoch until `more` and `reclaim` are through."),
    "epochs": Param(40, type="integer", minimum=1, maximum=1000, description="Passes over the train shard."),
    "batch_size": Param(64, type="integer", minimum=8, maximum=1024, description="Samples per step, over all ranks."),
    "learning_rate": Param(
        0.05, type="number", exclusiveMinimum=0, maximum=1, description="Peak learning rate of SGD."
    ),
    "seed": Param(
        0, type="integer", minimum=0, maximum=2**31 - 1, description="Of the split, the weights and the sample order."
    ),
    "test_fraction": Param(
        0.2, type="number", minimum=0.05, maximum=0.5, description="Share of the images kept for the test shard."
    ),
    "checkpoint_every": Param(
        10, type="number", minimum=1, maximum=3600, description="Seconds between durable checkpoints."
    ),
    "min_accuracy": Param(
        0.97, type="number", minimum=0, maximum=1, description="Least accuracy on the test shard; below, the run fails."
    ),
}


def skip_unless_reclaim(context: Any) -> None:
    """Leave the drill out when the run was started without it."""
    if not context["params"]["reclaim"]:
        raise AirflowSkipException("the parameter `reclaim` is off")


@task.external_python(python=TRAINER_PYTHON, expect_airflow=False)
def prepare(library: str, folder: str, code: str, test_fraction: str, seed: str) -> dict[str, int]:
    """Write both shards, and the code beside them; returns the number of images in each shard."""
    import sys
    from pathlib import Path

    sys.path.insert(0, library)
    from digits.code import copy_code
    from digits.shards import write_shards

    copy_code(Path(code))
    sizes: dict[str, int] = write_shards(Path(folder), float(test_fraction), int(seed))
    return sizes


@task.external_python(python=TRAINER_PYTHON, expect_airflow=False, trigger_rule="all_done")
def release(file: str) -> None:
    """Let the training end, whatever became of the resizes."""
    from pathlib import Path

    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).touch()


@task.external_python(python=TRAINER_PYTHON, expect_airflow=False)
def evaluate(library: str, training: dict[str, Any], folder: str, min_accuracy: str) -> dict[str, float]:
    """Accuracy of the trained network on the test shard."""
    import sys
    from pathlib import Path

    sys.path.insert(0, library)
    from digits.evaluate import evaluate_checkpoint

    found: dict[str, float] = evaluate_checkpoint(training["checkpoint"]["uri"], Path(folder), float(min_accuracy))
    return found


def digits(dag_id: str, operator: type[ElasticTrainingOperator]) -> DAG:
    """The DAG, with the operator of one engine."""
    with DAG(
        dag_id=dag_id,
        description=f"Elastic training on handwritten digits by {operator.engine}: grows, loses a worker, goes on",
        schedule=None,
        params=PARAMS,
        render_template_as_native_obj=False,
        default_args={"retries": 0},
        tags=["elastic-training", "example"],
        doc_md=__doc__,
    ) as dag:
        data = prepare(LIBRARY, SHARDS, CODE, "{{ params.test_fraction }}", "{{ params.seed }}")

        train = operator(
            task_id="train",
            command=[
                "python",
                f"{CODE}/digits_train.py",
                f"--engine={operator.engine}",
                f"--shards={SHARDS}",
                f"--ledger={RUN_FOLDER}/ledger",
                "--epochs={{ params.epochs }}",
                "--batch-size={{ params.batch_size }}",
                "--learning-rate={{ params.learning_rate }}",
                "--seed={{ params.seed }}",
                f"--hold-until={{% if params.hold %}}{RELEASED}{{% endif %}}",
            ],
            workers=Workers(
                min="{{ params.min_workers }}", start="{{ params.start_workers }}", max="{{ params.max_workers }}"
            ),
            checkpoint_uri="file://{{ params.folder }}/checkpoints",
            checkpoints=Checkpoints(every="{{ params.checkpoint_every }}"),
            recovery=Recovery(mode="elastic", max_wait=timedelta(minutes=10)),
            cluster="{{ params.cluster }}",
            image="{{ params.image }}",
            pods=Pods(
                volumes=[Volume(mount="{{ params.folder }}", claim="{{ params.claim }}")],
                worker=PodShape(template="{{ params.worker_template }}"),
            ),
            deferrable=True,
        )

        more = ScaleWorkersSensor(
            task_id="more",
            training_task_id="train",
            workers="{{ params.more_workers }}",
            cluster="{{ params.cluster }}",
            deferrable=True,
            poke_interval=1,
            timeout=600,
        )

        reclaim = ReclaimWorkerOperator(
            task_id="reclaim",
            training_task_id="train",
            grace="{{ params.reclaim_grace }}",
            cluster="{{ params.cluster }}",
            pre_execute=skip_unless_reclaim,
        )

        data >> [train, more]
        more >> reclaim >> release(RELEASED)
        train >> evaluate(LIBRARY, train.output, SHARDS, "{{ params.min_accuracy }}")
    return dag


horovod = digits("digits_elastic", ElasticHorovodOperator)
by_torch = digits("digits_elastic_torch", ElasticTorchOperator)
