"""A namespace for the tests of a module, and a name of its own for each test's run."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from elastic_training.clusters.kubernetes import connection
from tests.kubernetes.standin import StandIn
from tests.kubernetes_namespace import Namespace, prepare


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest) -> Namespace:
    """Of a Kubernetes; another one for each module, so that modules can run side by side."""
    return prepare(f"elastic-training-{request.path.stem.replace('_', '-')}")


@pytest.fixture
def name() -> str:
    """Of a run."""
    return f"test-{uuid4().hex[:10]}"


@pytest.fixture
def standin(namespace: Namespace, name: str) -> Iterator[StandIn]:
    """A cluster whose launchers do what the test says; nothing of its run is left afterwards."""
    made = StandIn(namespace, name)
    try:
        yield made
        made.end()
        assert namespace.left(name) == []
    finally:
        connection.forget()
