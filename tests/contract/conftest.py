"""One cluster of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from elastic_runtime.pool.folder import pool_folder
from elastic_training.clusters.pool import have_up, take_down
from tests.contract.cluster_kinds import (
    POOL,
    FakeKind,
    Kind,
    KubernetesKind,
    LocalKind,
    PodPoolKind,
    PoolKind,
    RayKind,
    SlurmKind,
    SparkKind,
    SqliteKind,
    pod_pool,
    slurmrestd_connection,
    trainer_python,
)
from tests.kubernetes_namespace import Namespace, prepare
from tests.paced import until

KINDS = os.environ.get("ELASTIC_TRAINING_CONTRACT", "fake local sqlite").split()
"""``kubernetes`` needs a cluster, and is what `make test-kubernetes` asks for; ``pool`` and ``pool-kubernetes``:
`make test-pool`."""


@pytest.fixture(scope="session", autouse=True)
def namespace() -> Iterator[Namespace | None]:
    """Of a Kubernetes, if that is asked for."""
    if not any("kubernetes" in each for each in KINDS):
        yield None
        return
    made = prepare("elastic-training-contract")
    with pod_pool(made) if "pool-kubernetes" in KINDS else nullcontext():
        yield made


@pytest.fixture(scope="session")
def pool_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a pool that is up for all tests, if that is asked for."""
    root = tmp_path_factory.mktemp("pool") / "runs"
    if "pool" not in KINDS:
        yield root
        return
    have_up(root, trainer_python(), POOL.name, POOL)
    folder = pool_folder(root, POOL.name)
    until(lambda: "workers start warm" in folder.log.read_text(), folder.log.read_text)
    yield root
    take_down(root, POOL.name)


@pytest.fixture(params=KINDS)
def kind(
    request: pytest.FixtureRequest, tmp_path: Path, namespace: Namespace | None, pool_root: Path
) -> Iterator[Kind]:
    """A cluster without the run."""
    made = _make(request.param, tmp_path, namespace, pool_root)
    try:
        yield made
    finally:
        made.close()


def _make(name: str, folder: Path, namespace: Namespace | None, pool_root: Path) -> Kind:
    match name:
        case "fake":
            return FakeKind()
        case "local":
            return LocalKind(folder, trainer_python())
        case "pool":
            return PoolKind(folder, trainer_python(), pool_root)
        case "sqlite":
            return SqliteKind(folder, trainer_python())
        case "slurm" | "slurmrestd":
            return SlurmKind(folder, trainer_python(), slurmrestd_connection() if name == "slurmrestd" else "")
        case "spark":
            return SparkKind(folder, trainer_python())
        case "ray":
            return RayKind(folder)
        case "kubernetes" | "pool-kubernetes":
            assert namespace
            return (KubernetesKind if name == "kubernetes" else PodPoolKind)(namespace)
    raise ValueError(f"ELASTIC_TRAINING_CONTRACT names no kind {name!r}")
