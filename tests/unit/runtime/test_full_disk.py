"""A disk that fills up while torch writes a checkpoint; other tests of the stores need no torch: unit/checkpoints."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.checkpointing.parts import part_writers


def test_is_the_stores_fault_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    checkpoints = Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses in the middle of a write, as it does on a full disk; Python ignores the signal.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StoreUnavailable, match="File too large"):
            checkpoints.write(
                1, datetime(2026, 11, 21, 12, tzinfo=UTC), part_writers(TORCH, {"model": torch.zeros(100_000)}, {})
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == []
