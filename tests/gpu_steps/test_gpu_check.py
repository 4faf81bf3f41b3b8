"""What is tried on a machine with a GPU, gone through on one without: every step of it works, but for the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "gpu_check.py"


@pytest.mark.timeout(400)
def test_all_steps_without_a_gpu(tmp_path: Path) -> None:
    words = [sys.executable, TOOL, "--cpu", "--rounds", "1", "--folder", tmp_path]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "RESULTS.md").read_text()
    rows = dict(line.strip("| ").split(" | ", 1) for line in page.splitlines() if line.startswith("| "))
    way = "torch sharded over Gloo"
    assert "on the processor; worlds 2, 3, 2, 3, 2" in rows[f"{way}: ranks that share it"]
    assert rows[f"{way}: exact"].endswith("as without changes, to the last bit")
    assert rows["random_states.py over Gloo, 2 ranks"] == "1 random states are exact"
    assert rows["checkpoints beside training, default stream"].endswith("hold what was committed")
    assert rows["checkpoint of 64 MiB: training stands, median (s)"].startswith("ours ")
    assert not (tmp_path / "runs").exists()


def test_without_a_gpu_nothing_is_measured_unasked(tmp_path: Path) -> None:
    words = [sys.executable, TOOL, "--folder", tmp_path / "not-made"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, env=hidden)
    assert done.returncode == 2
    assert "sees no GPU; --cpu goes through the same steps" in done.stderr
    assert not (tmp_path / "not-made").exists()
