"""Metadata of the provider for Airflow."""

from __future__ import annotations

from typing import Any

from elastic_training.hooks.form import HIDDEN, conn_fields, placeholders

_NAME = "Elastic Training"
_LINKS = ("TrainingRunLink", "TrainingLogLink", "CheckpointsLink", "ReportLink")
_FIELDS_OF_LINKS = (
    "Fields in braces: run, uid, cluster, namespace, dag_id, run_id, task_id, map_index, try_number. "
    "Empty, or where a field is not known of a run: no button."
)


def _option(description: str, example: str | None, default: str = "", kind: str = "string") -> dict[str, str | None]:
    """Describe an option of ``[elastic_training]`` as the schema of ``get_provider_info`` has it."""
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": kind,
        "example": example,
        "default": default,
    }


_OPTIONS = {
    "deployment": _option(
        "Name of this deployment of Airflow, part of the names of its runs and of the folders of "
        "their checkpoints, so that two deployments can share a namespace or a prefix. The same "
        "wherever tasks run. Empty: derived from ``[core] fernet_key``.",
        example="research",
    ),
    "keep_days": _option(
        "Days for which runs that are over are kept, with their log, where tasks say "
        '``on_finish="keep"``; 0: for ever. Checkpoints and reports stay in any case.',
        example="7",
        default="30",
        kind="float",
    ),
    "keep_runs": _option(
        "DAG runs of each task whose runs are kept, the newest; 0: all. A run that is over for less than a day stays.",
        example="20",
        default="100",
        kind="integer",
    ),
    "clear_interval": _option(
        "Seconds from 1 to 86,400 between two looks of a triggerer at which of its trainings' tasks were cleared in a "
        "paused DAG, of which Airflow does not tell it. Such a training trains on until then. Each look is a request "
        "to Airflow's database for all trainings together.",
        example="30",
        default="120",
        kind="float",
    ),
    "local_root": _option(
        'Folder of the runs with ``cluster="local"``, the same for workers and triggerers; '
        "belongs to Airflow's user alone. Empty: ``elastic_training`` in Airflow's home.",
        example="/var/lib/airflow/elastic-training",
    ),
    "local_python": _option(
        "Python interpreter of local launchers and workers, with ``elastic-runtime[torch]``, "
        "``[horovod]`` or ``[tensorflow]`` installed. Empty: Airflow's own.",
        example="/opt/trainer/bin/python",
    ),
    "price_book": _option(
        "What machines cost, for the cost in the result documents: path of a file, the same "
        "wherever tasks run, or ``example`` for the one that ships. Empty: no cost is told.",
        example="/opt/airflow/prices.toml",
    ),
    "machines": _option(
        "Machine types of your own for ``Workers(machine=...)``, beside those that ship: path of a "
        "file, the same wherever DAGs are parsed and tasks run.",
        example="/opt/airflow/machines.toml",
    ),
    "aws_spot_prices": _option(
        "Whether EC2 may be asked, at the end of a run, for the spot prices of its time. Needs "
        "``ec2:DescribeSpotPriceHistory``; ``price_book`` has all other prices.",
        example=None,
        default="False",
        kind="boolean",
    ),
    "archive": _option(
        "Where status and report of a run are kept once it is over: a folder, or a URI as of "
        "checkpoints. Empty: ``reports`` under the task's ``checkpoint_uri``; of a run of this "
        "machine without one, ``archive`` under ``local_root``; of any other, nothing is kept.",
        example="s3://bucket/training-reports",
    ),
    "archive_conn_id": _option(
        "Airflow connection with the credentials of ``archive``. Empty: what tasks, triggerer and "
        "API server find by themselves.",
        example="aws_default",
    ),
    "archive_keep": _option(
        "Tries of each task, over all its DAG runs, of which status and report are kept; 0: all.",
        example="1000",
        default="200",
        kind="integer",
    ),
    "places": _option(
        "Where the page of all runs and the command elastic-training look, by commas: names as in "
        "the operator's cluster.",
        example="local, kubernetes_default/training",
        default="local",
    ),
    "run_url": _option(
        f"Where a run is shown, for a button on its task's page. {_FIELDS_OF_LINKS}",
        example="https://grafana.example.com/d/training?var-namespace={namespace}&var-run={run}",
    ),
    "log_url": _option(
        f"The same for the log of its launcher and ranks. {_FIELDS_OF_LINKS}",
        example="https://logs.example.com/search?namespace={namespace}&pod={run}-*",
    ),
    "checkpoint_url": _option(
        "The same for its checkpoints; fields also: checkpoint (URI), bucket, prefix. Empty: a "
        "``gs://`` prefix has a button to Google's console, any other none.",
        example="https://s3.console.aws.amazon.com/s3/buckets/{bucket}?prefix={prefix}/",
    ),
    "report_url": _option(
        "The same for its report, which is there once the run is over; fields also: report (URI), "
        "bucket, prefix. Empty: in Airflow 3.1 and later the button leads to "
        "``/elastic-training/report`` of this Airflow.",
        example="https://storage.cloud.google.com/{bucket}/{prefix}",
    ),
}


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata; see Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-elastic-training",
        "name": _NAME,
        "description": "Elastic training runs, by Horovod or torch.distributed, as tasks: scaled, resumed and watched.",
        "integrations": [{"integration-name": _NAME, "external-doc-url": "https://horovod.ai/", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    "elastic_training.operators.capacity_decision",
                    "elastic_training.operators.elastic_horovod",
                    "elastic_training.operators.elastic_torch",
                    "elastic_training.operators.elastic_training",
                    "elastic_training.operators.end_training",
                    "elastic_training.operators.pause_training",
                    "elastic_training.operators.reclaim_worker",
                    "elastic_training.operators.restartable",
                    "elastic_training.operators.scale_training",
                ],
            }
        ],
        "sensors": [{"integration-name": _NAME, "python-modules": ["elastic_training.sensors.scale_workers"]}],
        "triggers": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    "elastic_training.triggers.checkpoints",
                    "elastic_training.triggers.training_run",
                    "elastic_training.triggers.world_size",
                ],
            }
        ],
        "task-decorators": [
            {
                "class-name": f"elastic_training.decorators.training.elastic_{engine}_task",
                "name": f"elastic_{engine}",
            }
            for engine in ("horovod", "torch")
        ],
        "hooks": [{"integration-name": _NAME, "python-modules": ["elastic_training.hooks.elastic_training"]}],
        "extra-links": [f"elastic_training.links.{each}" for each in _LINKS],
        "connection-types": [
            {
                "connection-type": "elastic_training",
                "hook-class-name": "elastic_training.hooks.elastic_training.ElasticTrainingHook",
                "hook-name": _NAME,
                "conn-fields": conn_fields(),
                "ui-field-behaviour": {"hidden-fields": list(HIDDEN), "placeholders": placeholders()},
            }
        ],
        "config": {
            "elastic_training": {
                "description": "Where elastic training runs live.",
                "options": _OPTIONS,
            }
        },
    }
