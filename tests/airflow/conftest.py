"""One Airflow for all tests, as it takes half a minute to start; the triggerer, which they kill, is each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo_kit.airflow_stack import AirflowStack
from tests.airflow.real_airflow import Airflow, completed, stack_without, trainings_of

KILLED = ("triggerer",)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    home = tmp_path_factory.mktemp("airflow") / "home"
    with stack_without(KILLED, home, trainings_of(home)) as running:
        yield running


@pytest.fixture
def airflow(stack: AirflowStack) -> Iterator[Airflow]:
    with completed(stack, KILLED, trainings_of(stack.settings.home)) as running:
        yield running
