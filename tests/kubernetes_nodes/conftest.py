"""One namespace, of runs without an Airflow."""

from __future__ import annotations

import pytest

from tests.kubernetes_namespace import Namespace, prepare


@pytest.fixture(scope="session")
def namespace() -> Namespace:
    """Empty at first."""
    return prepare("elastic-training-disturbed")
