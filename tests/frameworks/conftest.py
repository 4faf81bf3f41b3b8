"""Real runs of trainings that are written with a framework, in the environment ``.venv-frameworks``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.conftest import start

__all__ = ["EXAMPLES", "SCRIPTS", "deepspeed_operations", "start"]

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "dags" / "examples" / "frameworks"


@pytest.fixture(scope="session")
def deepspeed_operations() -> str:
    """``TORCH_EXTENSIONS_DIR`` with what DeepSpeed compiles when it first starts, a minute; kept in ``build``.

    A process that is killed while it compiles leaves a lock, for which every later one waits for good.
    """
    folder = Path(__file__).parents[2] / "build" / "torch_extensions"
    for lock in folder.glob("**/lock"):
        lock.unlink()
    made = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder)}
    load = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
    subprocess.run([sys.executable, "-c", load], env=made, check=True, timeout=600)
    return str(folder)
