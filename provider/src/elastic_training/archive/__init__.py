"""Archive of runs that are over: the status that it ended with, what it cost, and its report.

It outlives the run's own documents, which the next try replaces, and finds the tries of a task again by Airflow's ids
alone. Where it lies: :mod:`~elastic_training.archive.where`.
"""

from elastic_training.archive.document import Kept
from elastic_training.archive.keeping import KEEPING_TIMEOUT, Keeper, keep
from elastic_training.archive.reading import look_up, read, read_newest

__all__ = ["KEEPING_TIMEOUT", "Keeper", "Kept", "keep", "look_up", "read", "read_newest"]
