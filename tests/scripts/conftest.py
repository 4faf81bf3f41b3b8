"""Other people's training scripts, from a folder with one checkout for each project."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from tests.local.conftest import Start, start
from tests.paced import Script
from tests.steered import STANDIN, Steered, checkout, steering

__all__ = ["DOCS", "HUB", "HYDRA", "NO_HANDLER", "Steered", "Train", "change", "checkout", "start", "train"]

HUB = Path(__file__).parent / "standin_hub"
"""Takes the place of Datasets and Evaluate, for scripts that fetch data, models and metrics by them."""
HYDRA = Path(__file__).parent / "standin_hydra"
"""Takes the place of Hydra and OmegaConf. Others, as Lightning, look for the real ones."""
DOCS = Path(__file__).parents[2] / "docs" / "torchrun.md"
NO_HANDLER = "SIGTERM itself ended ranks "
Train = Callable[..., "Steered"]


def change(script: Path, lines: Mapping[str, str], *, documented: bool = False) -> None:
    """Replace lines of it, each of which has to be there once, and new ones be in the docs if they are told there."""
    text = script.read_text()
    if documented:
        told = DOCS.read_text().splitlines()
        wanted = [f"+{line}" for old, new in lines.items() for line in new.splitlines() if line not in old.splitlines()]
        assert [line for line in told if line in wanted] == wanted
    for old, new in lines.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)


@pytest.fixture
def train(start: Start, tmp_path: Path) -> Train:
    """Starts a script in its folder, with Restart as it is by default, and the stand-in for CUDA."""

    def begin(
        folder: Path, *command: str, held_after: int = 3, standins: tuple[Path, ...] = (), **spec: Any
    ) -> Steered:
        path = (STANDIN, *standins)
        environment = {
            **steering(tmp_path, held_after),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "ELASTIC_RUNTIME_PRELOAD": "cpu_for_cuda",
        }
        run = start(
            Script("none"),
            (1, 2, 3),
            engine="torchrun",
            command=("python", *command),
            path=path,
            working_directory=str(folder),
            restart=RestartSpec(grace=20.0),
            recovery=RecoverySpec(backoff=0.5),
            environment={**environment, **spec.pop("environment", {})},
            **spec,
        )
        return Steered(run, tmp_path, held_after)

    return begin
