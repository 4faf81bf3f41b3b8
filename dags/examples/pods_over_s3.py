"""Data preparation and evaluation in pods beside the training: they share no folder, only S3.

The connection *training* says where pods run, in which image, and where checkpoints go. The pods that are no training
have S3's credentials from a Secret of their namespace, ``trainings-s3``, whose keys are environment variables
(``AWS_ACCESS_KEY_ID`` …); the training has them from the connection that *training* names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.secret import Secret
from airflow.providers.common.compat.sdk import DAG, Param

from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Workers

SCRIPT = "points_in_s3.py"
DATA = "{{ params.data }}/{{ run_id | replace(':', '-') | replace('+', '-') }}.pt"


def pod(task_id: str, *arguments: str) -> KubernetesPodOperator:
    """The script in a pod of its own, without an image of its own."""
    common: dict[str, Any] = {"namespace": "{{ conn.training.extra_dejson.namespace }}", "get_logs": True}
    return KubernetesPodOperator(
        task_id=task_id,
        name=task_id,
        image="{{ conn.training.extra_dejson.image }}",
        image_pull_policy="IfNotPresent",
        cmds=["python", "-c", (Path(__file__).parent / SCRIPT).read_text(encoding="utf-8")],
        arguments=[task_id, *arguments],
        secrets=[Secret("env", None, "trainings-s3")],
        **common,
    )


with DAG(
    "example_pods_over_s3",
    description="Preparation, training and evaluation in pods, with S3 in between",
    schedule=None,
    params={
        "data": Param("s3://trainings/data", type="string", pattern="^s3://", description="Where the points go."),
        "accuracy": Param(0.9, type="number", minimum=0, maximum=1, description="Less than this fails."),
    },
    tags=["elastic-training", "example"],
    doc_md=__doc__,
) as dag:
    train = ElasticTorchOperator(
        task_id="train",
        command=["python", SCRIPT, "train", DATA],
        scripts=[SCRIPT],
        workers=Workers(min=1, start=2, max=3),
        cluster="training",
    )
    checkpoint = "{{ ti.xcom_pull('train')['checkpoint']['uri'] }}"
    pod("prepare", DATA) >> train >> pod("evaluate", DATA, checkpoint, "{{ params.accuracy }}")
