"""Random states of TensorFlow's are exact on all ranks, in worlds of two and of three ranks; seeds by ``STATES``."""

from __future__ import annotations

import os

import pytest

from tests.plain_launchers import by_horovod
from tests.tensorflow.conftest import ENVIRONMENT, SCRIPTS

COUNT = int(os.environ.get("STATES", "20"))


@pytest.mark.timeout(150 + 2 * COUNT)
@pytest.mark.parametrize("ranks", [2, 3])
def test_horovod(ranks: int) -> None:
    said = by_horovod(SCRIPTS / "random_variables.py", ranks, ranks * 100_000, COUNT // 2, environment=ENVIRONMENT)
    assert said.count("states checked") == ranks
