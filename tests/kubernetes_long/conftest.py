"""One Airflow and one namespace of a real Kubernetes for all tests; triggerer and scheduler are each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo_kit.airflow_stack import AirflowStack
from demo_kit.kubernetes_trainings import KubernetesTrainings, prepared
from tests.airflow.real_airflow import TRAINER, Airflow, completed, stack_without

NAMESPACE = "elastic-training-airflow"
KILLED = ("triggerer", "scheduler")


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
    """All of Airflow but what tests kill."""
    with stack_without(KILLED, home, trainings) as running:
        yield running


@pytest.fixture
def airflow(stack: AirflowStack, trainings: KubernetesTrainings) -> Iterator[Airflow]:
    """The whole of it."""
    with completed(stack, KILLED, trainings) as running:
        yield running
