"""The documentation's scripts for TensorFlow run, from nothing and once more from where they ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documented import RECIPES, Recipe


@pytest.mark.timeout(300)
@pytest.mark.parametrize("recipe", [each for each in RECIPES if each.place == "tensorflow"], ids=lambda each: each.name)
def test_what_runs_alone(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(recipe.script(tmp_path))
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert recipe.says in (ended.stdout.splitlines() or [""])[-1]
