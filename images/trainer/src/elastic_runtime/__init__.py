"""Elastic Horovod runs: the launcher, the agents and the training helpers that live in the trainer's image.

Importing this package, or any of its modules outside :mod:`elastic_runtime.torch` and
:mod:`elastic_runtime.engines.horovod`, imports neither torch nor horovod.
"""

__version__ = "0.1.0"
