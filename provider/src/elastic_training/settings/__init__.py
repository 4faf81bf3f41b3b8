"""User settings of a training, checked as early as they are known. DAG files import them from here.

Every value may be a template (``"{{ params.max_workers }}"``), or the output of another task. A value that is known
when the DAG file is parsed is checked then; what comes later is checked in ``execute``, before anything is created. All
complaints are :class:`~elastic_runtime.errors.InvalidSettings`, with the field's name and the remedy.
"""

from elastic_training.settings.deadline import Deadline
from elastic_training.settings.horovod_knobs import Horovod
from elastic_training.settings.jupyter import Jupyter
from elastic_training.settings.observe import Observe, Prometheus
from elastic_training.settings.pods import Pods, PodShape, SecretRef, Volume
from elastic_training.settings.ray import Ray
from elastic_training.settings.recovery import Checkpoints, Recovery, Restart
from elastic_training.settings.size_plan import SizePlan, SizeWindow
from elastic_training.settings.slurm import Slurm
from elastic_training.settings.spark import Spark
from elastic_training.settings.training_pool import TrainingPool
from elastic_training.settings.workers import Join, Workers

__all__ = [
    "Checkpoints",
    "Deadline",
    "Horovod",
    "Join",
    "Jupyter",
    "Observe",
    "PodShape",
    "Pods",
    "Prometheus",
    "Ray",
    "Recovery",
    "Restart",
    "SecretRef",
    "SizePlan",
    "SizeWindow",
    "Slurm",
    "Spark",
    "TrainingPool",
    "Volume",
    "Workers",
]
