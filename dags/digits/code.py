"""The training's code, beside its data: what this run of the DAG began with, wherever its workers are."""

from __future__ import annotations

import shutil
from pathlib import Path

_DAGS = Path(__file__).resolve().parents[1]
SCRIPT, PACKAGE = "digits_train.py", "digits"


def copy_code(folder: Path) -> None:
    """Copy the training script and its package into ``folder``, which is made when missing."""
    shutil.copytree(_DAGS / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    shutil.copyfile(_DAGS / SCRIPT, folder / SCRIPT)
