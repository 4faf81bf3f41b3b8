"""Real runs of trainings that are written with a framework, in the environment ``.venv-frameworks``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.local.conftest import start

__all__ = ["EXAMPLES", "SCRIPTS", "deepspeed_operations", "start"]

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "dags" / "examples" / "frameworks"
COMPILING = 900.0
"""Seconds."""


@pytest.fixture(scope="session")
def deepspeed_operations() -> str:
    """``TORCH_EXTENSIONS_DIR`` with what DeepSpeed compiles when it first starts: a minute, ten on a busy machine.

    It is kept in ``$XDG_CACHE_HOME/elastic-training`` (``~/.cache`` unless set).
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = f"deepspeed-{version('deepspeed')}-torch-{version('torch')}-{sys.implementation.cache_tag}"
    folder = cache / "elastic-training" / "torch_extensions" / key
    made = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder)}
    load = (
        "from elastic_runtime.engines.torchrun.extension_locks import take_over_stale_locks; take_over_stale_locks(); "
        "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
    )
    with subprocess.Popen([sys.executable, "-c", load], env=made, start_new_session=True) as process:
        try:
            assert process.wait(COMPILING) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # Its compilers are not left behind.
    return str(folder)
