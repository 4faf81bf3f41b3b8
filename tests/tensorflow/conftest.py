"""Real runs of TensorFlow's scripts: those of ``tests/local``, in the environment ``.venv-tensorflow``."""

from __future__ import annotations

import os
from pathlib import Path

from tests import paced
from tests.local.conftest import start

__all__ = ["ENVIRONMENT", "SCRIPTS", "start"]

SCRIPTS = Path(__file__).parent / "scripts"
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(paced.SCRIPTS), os.environ.get("PYTHONPATH", "")]),
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Of the ranks: they import ``pace``."""
