"""Another user of the machine wants to be taken for a process that a rank has started, and to train in its place."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from elastic_runtime.protocol.wire import RankSaid
from tests.unit.runtime.worker_bench import Worker, code, with_worker

RANK = code("""
import os, time
from elastic_runtime.protocol.rank_sockets import RANK_SOCKET
print(os.environ[RANK_SOCKET])
print("ready")
time.sleep(600)
""")
CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    sock.sendall(b'{"type": "progress", "step": 3}\\n')
"""
NOBODY = 65534


def connect(path: str, user: int) -> str:
    command = (sys.executable, "-c", CONNECT, path, str(user))
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_only_the_ranks_own_user_can_connect() -> None:
    async def test(worker: Worker) -> None:
        await worker.start("a", RANK)
        path = worker.lines("a", "stdout")[0]
        assert "PermissionError" in await asyncio.to_thread(connect, path, NOBODY)
        assert worker.of(RankSaid) == []
        assert await asyncio.to_thread(connect, path, os.getuid()) == ""
        await worker.until(lambda: bool(worker.of(RankSaid)))

    with_worker(True, test)
