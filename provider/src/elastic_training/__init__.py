"""Elastic Horovod training runs as tasks of Airflow.

Importing this package imports neither torch, horovod nor a cluster's client; what a DAG file needs is in
:mod:`elastic_training.settings`, :mod:`elastic_training.operators`, :mod:`elastic_training.sensors`.
"""

__version__ = "0.1.0"
