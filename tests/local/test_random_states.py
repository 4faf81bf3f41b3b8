"""Random states of torch's are exact on all ranks, under plain launchers of two or three ranks; seeds by ``STATES``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "random_states.py"
COUNT = int(os.environ.get("STATES", "60"))
TORCH = "elastic_runtime.engines.torch.world:WORLD"


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}


@pytest.mark.timeout(120 + COUNT)
@pytest.mark.parametrize("ranks", [2, 3])
def test_horovod(ranks: int) -> None:
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo"]
    command = [*launcher, sys.executable, str(SCRIPT), str(ranks * 100_000), str(COUNT // 2)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("states checked") == ranks


@pytest.mark.timeout(120 + COUNT)
@pytest.mark.parametrize("ranks", [2, 3])
def test_torch(ranks: int) -> None:
    port = next(_free_ports())
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), str(ranks * 1_000_000), str(COUNT // 2)],
                    env=_environment(
                        ELASTIC_RUNTIME_WORLD=TORCH,
                        MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=str(port),
                        RANK=str(rank),
                        WORLD_SIZE=str(ranks),
                    ),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(ranks)
        ]
        said = [process.communicate()[0] for process in processes]
    assert all("states checked" in each for each in said), said
    assert [process.returncode for process in processes] == [0] * ranks, said


def _free_ports() -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield port
