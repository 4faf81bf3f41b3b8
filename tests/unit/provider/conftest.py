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


@pytest.fixture(autouse=True)
def local_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of this machine, and what is kept of them, are of one test."""
    root = tmp_path / "local-root"
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", str(root))
    return root


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A place for checkpoints."""
    return f"file://{tmp_path}/checkpoints"
