"""One cluster of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.cluster_kinds import (
    FakeKind,
    Kind,
    KubernetesKind,
    LocalKind,
    SlurmKind,
    SqliteKind,
    trainer_python,
)
from tests.kubernetes_namespace import Namespace, prepare

KINDS = os.environ.get("ELASTIC_TRAINING_CONTRACT", "fake local sqlite").split()
"""``kubernetes`` needs a cluster, and is what `make test-kubernetes` asks for."""


@pytest.fixture(scope="session", autouse=True)
def namespace() -> Namespace | None:
    """Of a Kubernetes, if that is asked for."""
    return prepare("elastic-training-contract") if "kubernetes" in KINDS else None


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, namespace: Namespace | None) -> Iterator[Kind]:
    """A cluster without the run."""
    made = _make(request.param, tmp_path, namespace)
    try:
        yield made
    finally:
        made.close()


def _make(name: str, folder: Path, namespace: Namespace | None) -> Kind:
    match name:
        case "fake":
            return FakeKind()
        case "local":
            return LocalKind(folder, trainer_python())
        case "sqlite":
            return SqliteKind(folder, trainer_python())
        case "slurm":
            return SlurmKind(folder, trainer_python())
        case "kubernetes":
            assert namespace
            return KubernetesKind(namespace)
    raise ValueError(f"ELASTIC_TRAINING_CONTRACT names no kind {name!r}")
