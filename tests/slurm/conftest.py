"""Runs in a real Slurm: that of ``tools/slurm with``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.batch_systems import starting, undisturbed
from tests.slurm_run import SlurmRun

__all__ = ["Start", "start", "undisturbed"]

Start = Callable[..., SlurmRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    assert shutil.which("sbatch"), "run me through tools/slurm with --"
    yield from starting(tmp_path, SlurmRun)
