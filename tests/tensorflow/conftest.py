"""Real runs of TensorFlow's scripts: those of ``tests/local``, in the environment ``.venv-tensorflow``."""

from __future__ import annotations

from tests.local.conftest import start
from tests.tensorflow.ranks import ENVIRONMENT, SCRIPTS

__all__ = ["ENVIRONMENT", "SCRIPTS", "start"]
