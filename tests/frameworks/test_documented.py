"""The documentation's recipes run: from nothing, asked to end at the third step, and once more from there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documented import RECIPES, Recipe


@pytest.mark.timeout(300)
@pytest.mark.parametrize("recipe", [each for each in RECIPES if each.place == "frameworks"], ids=lambda each: each.name)
def test_a_recipe_goes_on_where_it_was_asked_to_end(recipe: Recipe, tmp_path: Path) -> None:
    """By SIGTERM, as `Restart` does where it says nothing."""
    (tmp_path / "train.py").write_text(recipe.script(tmp_path / "shared"))
    world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}

    def train() -> str:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "documented"}
        ended = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, **world, **place, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert "step" not in train()
    assert (tmp_path / "asked").exists()
    steps = 21 if recipe.name == "accelerate" else 20  # three epochs of seven batches
    assert f"step {steps} of which {steps - 3} now" in train()
