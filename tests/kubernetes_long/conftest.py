"""One Airflow and one namespace of a real Kubernetes for all tests; the triggerer is each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo_kit.airflow_stack import AirflowStack
from demo_kit.kubernetes_trainings import KubernetesTrainings, prepared
from tests.airflow.real_airflow import TRAINER, Airflow, stack_without_triggerer, with_triggerer
from tests.kubernetes_namespace import Namespace, prepare

NAMESPACE = "elastic-training-airflow"


@pytest.fixture(scope="session")
def namespace() -> Namespace:
    """Of runs without an Airflow."""
    return prepare("elastic-training-disturbed")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of Airflow."""
    return tmp_path_factory.mktemp("airflow") / "home"


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesTrainings]:
    """In an empty namespace."""
    with prepared(NAMESPACE, tmp_path_factory.mktemp("digits"), Path(TRAINER)) as ready:
        ready.end_all()
        yield ready


@pytest.fixture(scope="session")
def stack(home: Path, trainings: KubernetesTrainings) -> Iterator[AirflowStack]:
    """All of Airflow but the triggerer."""
    with stack_without_triggerer(home, trainings) as running:
        yield running


@pytest.fixture
def airflow(stack: AirflowStack, trainings: KubernetesTrainings) -> Iterator[Airflow]:
    """With a triggerer."""
    with with_triggerer(stack, trainings) as running:
        yield running
