"""The hostfile of a real run goes with its worlds."""

from __future__ import annotations

import shutil
import subprocess
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


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed (Debian: openmpi-bin)")
def test_mpirun_starts_a_process_in_each_slot(start: Start, tmp_path: Path) -> None:
    script, notes = Script("hosts.py", epochs=20, holds=(10,)), tmp_path / "hosts.txt"
    run = start(script, (1, 3, 3), environment={"NOTES": str(notes)})
    run.at(10)
    hostfile = notes.with_suffix(".path").read_text()

    def started(processes: int) -> subprocess.CompletedProcess[str]:
        words = ["mpirun", "--allow-run-as-root", "--hostfile", hostfile, "-np", str(processes), "echo", "here"]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    assert started(3).stdout.split() == ["here"] * 3
    refused = started(4)
    assert (refused.returncode != 0, "not enough slots" in refused.stderr) == (True, True)
    run.go(10)
    assert run.finish().phase is Phase.SUCCEEDED
