"""What the training helpers promise between ranks, under plain horovodrun: no launcher of ours has a part in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)  # several processes that import torch
def test_two_ranks_find_every_promise_kept(tmp_path: Path) -> None:
    script = Path(__file__).parent / "scripts" / "two_ranks.py"
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo", sys.executable, str(script), tmp_path],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checked") == 2
