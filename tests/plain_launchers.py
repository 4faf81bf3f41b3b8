"""Scripts of several ranks without this project's launcher: by Horovod's, and by none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.paced import until

TORCH = "elastic_runtime.engines.torch.world:WORLD"


def by_horovod(script: Path, ranks: int, *arguments: object, environment: dict[str, str] | None = None) -> str:
    """Run a script, and return what all its ranks have said; fails where one fails."""
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo"]
    command = [*launcher, sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=_environment(environment or {}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_torch(
    script: Path, ranks: int, *arguments: object, max_wait: float, environment: dict[str, str] | None = None
) -> str:
    """The same for torch.distributed. Where one rank fails, or after so many seconds, the others are killed."""
    with socket.socket() as free, ExitStack() as stack:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        free.close()
        command = [sys.executable, str(script), *map(str, arguments)]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env=_environment(
                        {
                            "ELASTIC_RUNTIME_WORLD": TORCH,
                            **address,
                            "RANK": str(rank),
                            "WORLD_SIZE": str(ranks),
                            "NCCL_HOSTID": str(rank),  # Or it refuses several on one GPU.
                            **(environment or {}),
                        }
                    ),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(ranks)
        ]
        try:
            until(lambda: _over(processes), "the ranks' end", max_wait)
        finally:
            for process in processes:
                process.kill()
            said = "".join(process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0] * ranks, said
    return said


def _over(processes: Sequence[subprocess.Popen[str]]) -> bool:
    codes = [process.poll() for process in processes]
    return None not in codes or any(codes)


def _environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}
