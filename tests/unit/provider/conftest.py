"""What the tests of operators share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from tests import examples

examples.choose()


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """In the place of the local cluster."""
    with substituted("local", cluster := FakeCluster()):
        yield cluster


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A place for checkpoints."""
    return f"file://{tmp_path}/checkpoints"
