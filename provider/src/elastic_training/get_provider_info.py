"""What Airflow's plugin of providers wants to know."""

from __future__ import annotations

from typing import Any

_NAME = "Elastic Training"


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata; see Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-elastic-training",
        "name": _NAME,
        "description": "Elastic Horovod training runs as tasks: scaled, preempted, resumed and watched.",
        "integrations": [{"integration-name": _NAME, "external-doc-url": "https://horovod.ai/", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    "elastic_training.operators.elastic_horovod",
                    "elastic_training.operators.end_training",
                    "elastic_training.operators.reclaim_worker",
                    "elastic_training.operators.scale_training",
                ],
            }
        ],
        "sensors": [{"integration-name": _NAME, "python-modules": ["elastic_training.sensors.scale_workers"]}],
        "triggers": [
            {
                "integration-name": _NAME,
                "python-modules": ["elastic_training.triggers.training_run", "elastic_training.triggers.world_size"],
            }
        ],
        "config": {
            "elastic_training": {
                "description": "Where elastic training runs live.",
                "options": {
                    "deployment": {
                        "description": (
                            "Name of this deployment of Airflow, part of the names of its runs and of the folders of "
                            "their checkpoints, so that two deployments can share a namespace or a prefix. The same "
                            "wherever tasks run. Empty: derived from ``[core] fernet_key``."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "research",
                        "default": "",
                    },
                    "local_root": {
                        "description": (
                            'Folder of the runs with ``cluster="local"``, the same for workers and triggerers; '
                            "belongs to Airflow's user alone. Empty: ``elastic_training`` in Airflow's home."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/var/lib/airflow/elastic-training",
                        "default": "",
                    },
                    "local_python": {
                        "description": (
                            "Python interpreter of local launchers and workers, with ``elastic-runtime[horovod]`` "
                            "installed. Empty: Airflow's own."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/opt/trainer/bin/python",
                        "default": "",
                    },
                },
            }
        },
    }
