"""The hostfile of a real run goes with its worlds."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.run.status import Phase
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)


def test_tells_each_world(start: Start, tmp_path: Path) -> None:
    notes = tmp_path / "hosts.txt"
    script, elsewhere = Script("hosts.py", epochs=30, holds=(10, 20)), tmp_path / "elsewhere"
    run = start(script, (1, 2, 3), environment={"NOTES": str(notes)}, hostfile=str(elsewhere))
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    run.go(10)
    run.at(20)
    run.resize(2)
    run.worlds(2, 3, 2)

    assert run.finish().phase is Phase.SUCCEEDED
    assert notes.read_text().splitlines() == [f"{size}: 127.0.0.1 slots={size}" for size in (2, 3, 2)]
    assert not elsewhere.exists(), "a run of this machine writes where somebody says"
