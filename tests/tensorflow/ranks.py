"""Scripts for TensorFlow, and what their ranks need."""

from __future__ import annotations

import os
from pathlib import Path

from tests import paced

SCRIPTS = Path(__file__).parent / "scripts"
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(paced.SCRIPTS), os.environ.get("PYTHONPATH", "")]),
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Of the ranks: they import ``pace``."""
