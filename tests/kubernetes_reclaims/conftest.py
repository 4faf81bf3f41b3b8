"""One namespace whose launchers may read nodes, a folder that its pods share with the tests, and an S3 for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from demo_kit.kubernetes_trainings import prepared
from elastic_runtime.run.spec import CheckpointSpec
from elastic_training.clusters.kubernetes import connection
from tests.kubernetes_namespace import IMAGE, REPOSITORY, prepare
from tests.kubernetes_reclaims.pod_run import Place, PodRun
from tests.paced import SCRIPTS, Script, Undisturbed
from tests.s3_server import CREDENTIALS, new_bucket, s3_server

NAMESPACE = "elastic-training-reclaims"
Start = Callable[..., PodRun]
"""Arguments as :class:`PodRun`, but for the place."""


@contextmanager
def shared_place(namespace: str, folder: Path, image: str, *scripts: Path) -> Iterator[Place]:
    """Pods of that image see the folder, and in it the scripts of all those folders."""
    trainer = Path(os.environ["ELASTIC_TRAINING_TRAINER_PYTHON"])
    with prepared(namespace, folder, trainer):
        made = Place(prepare(namespace), folder, image)
        for each in scripts:
            shutil.copytree(each, made.scripts, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        binding = ("clusterrolebinding", f"elastic-training-nodes-{namespace}")
        account = f"--serviceaccount={namespace}:elastic-training-launcher"
        made.namespace.kubectl("apply", f"--filename={REPOSITORY / 'deploy' / 'rbac-nodes.yaml'}")
        made.namespace.kubectl("delete", *binding, "--ignore-not-found")
        made.namespace.kubectl("create", *binding, "--clusterrole=elastic-training-nodes", account)
        made.offer(room=True)
        try:
            yield made
        finally:
            made.offer(room=False)
            made.namespace.kubectl("delete", *binding)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with shared_place(NAMESPACE, tmp_path_factory.mktemp("shared"), IMAGE, SCRIPTS) as made:
        yield made


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    """Starts runs; nothing of them is left afterwards."""
    runs: list[PodRun] = []

    def begin(script: Script, *arguments: Any, fresh: bool = False, at: Place = place, **spec: Any) -> PodRun:
        run = PodRun(at, script, *arguments, **spec)
        run.start(fresh=fresh)
        runs.append(run)
        return run

    yield begin
    for run in reversed(runs):
        run.close()
    connection.forget()


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """Where pods reach it."""
    with s3_server(os.environ["ELASTIC_TRAINING_CLUSTER_HOST"]) as url:
        yield url


@pytest.fixture
def s3(s3_url: str) -> dict[str, Any]:
    """Fields of a spec: an empty bucket, where nothing is written but for a notice, and in the end."""
    environment = {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": s3_url}
    return {"checkpoint": CheckpointSpec(f"s3://{new_bucket(s3_url)}/run", every=3600.0), "environment": environment}


@pytest.fixture(scope="session")
def undisturbed(place: Place) -> Undisturbed:
    """In pods, too."""
    run = PodRun(place, Script("exact.py"), (2, 2, 2))
    run.start()
    try:
        run.finish()
        return Undisturbed.by(run)
    finally:
        run.close()
        connection.forget()
