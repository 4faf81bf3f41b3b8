"""Random states of torch's are exact on all ranks, in worlds of two and of three ranks; seeds by ``STATES``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.paced import SCRIPTS
from tests.plain_launchers import by_horovod, by_torch

COUNT = int(os.environ.get("STATES", "24"))
SCRIPT_TIMEOUT = 120 + 2 * COUNT
pytestmark = pytest.mark.timeout(SCRIPT_TIMEOUT + 30)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_horovod(ranks: int) -> None:
    said = by_horovod(SCRIPTS / "random_states.py", ranks, ranks * 100_000, COUNT // 2)
    assert said.count("states checked") == ranks


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_torch(ranks: int) -> None:
    said = by_torch(SCRIPTS / "random_states.py", ranks, ranks * 1_000_000, COUNT // 2, max_wait=SCRIPT_TIMEOUT)
    assert said.count("states checked") == ranks


def test_sharded(tmp_path: Path) -> None:
    said = by_torch(SCRIPTS / "random_sharded.py", 3, 0, COUNT // 6, tmp_path, max_wait=SCRIPT_TIMEOUT)
    assert said.count("states checked") == 3
