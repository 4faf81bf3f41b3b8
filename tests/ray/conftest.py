"""Runs in a real Ray: that of ``tools/ray with``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab_kit import until
from ray_lab import NODES, alive
from tests.batch_systems import starting, undisturbed
from tests.ray_run import RayRun

__all__ = ["Start", "start", "undisturbed"]

Start = Callable[..., RayRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    assert os.environ.get("RAY_LAB"), "run me through tools/ray with --"
    yield from starting(tmp_path, RayRun)


@pytest.fixture
def all_nodes(tmp_path: Path) -> None:
    """Wait for the head and all nodes: the lab replaces those that were drained."""
    until(lambda: len(alive(os.environ["RAY_LAB"])) == NODES + 1, "all nodes are there", tmp_path)
