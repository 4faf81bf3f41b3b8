"""As in ``tests/kubernetes_reclaims``, in pods of the image that has TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import paced
from tests.kubernetes_namespace import IMAGE
from tests.kubernetes_reclaims.conftest import shared_place, start
from tests.kubernetes_reclaims.pod_run import Place

__all__ = ["start"]

SCRIPTS = Path(__file__).parents[1] / "tensorflow" / "scripts"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("shared")
    with shared_place("elastic-training-tensorflow", folder, f"{IMAGE}-tensorflow", paced.SCRIPTS, SCRIPTS) as made:
        yield made
