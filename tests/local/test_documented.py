"""The documentation's scripts and recipes run, from nothing and once more from where they ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec
from tests.documented import RECIPES
from tests.local.conftest import Start
from tests.paced import SCRIPTS, Script

BY_HAND = [recipe for recipe in RECIPES if recipe.place == "hand"]
(SHARDED,) = [recipe for recipe in RECIPES if recipe.place == "sharded"]


@pytest.mark.timeout(400)
def test_what_runs_alone(tmp_path: Path) -> None:
    folders = [tmp_path / recipe.name.replace(" ", "-") for recipe in BY_HAND]
    for recipe, folder in zip(BY_HAND, folders, strict=True):
        folder.mkdir()
        (folder / "train.py").write_text(recipe.script(folder))
    ended = subprocess.run(
        [sys.executable, SCRIPTS / "each_in_turn.py", *folders],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for recipe, folder in zip(BY_HAND, folders, strict=True):
        for time in ("1", "2"):
            lines = (folder / time).read_text().splitlines()
            assert recipe.says in (lines or [""]), f"{recipe.name}, time {time}: {lines}"


@pytest.mark.timeout(400)
def test_what_needs_ranks_that_share_a_model(start: Start, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARDED.script(tmp_path))
    for _ in range(2):
        run = start(
            Script("none"), (2, 2, 2), ("python", str(tmp_path / "train.py")), engine="torch",
            checkpoint=CheckpointSpec((tmp_path / "store").as_uri()),
        )  # fmt: skip
        run.succeed()
        assert run.log().count(f": {SHARDED.says}\n") == 2
