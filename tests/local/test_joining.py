"""A machine joins a run by hand: a process of its own, with a folder and an environment of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from elastic_runtime.agent.join import TOKEN_VARIABLE
from elastic_runtime.clock import utc_now
from elastic_runtime.run.join import JoinSpec, JoinToken
from elastic_runtime.run.status import EventKind, WorkerState
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed
from tests.unit.runtime.join_bench import free_port

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("start", ["torch-in-place"], indirect=True)
def test_it_trains_and_leaves_with_no_step_lost(start: Start, undisturbed: Undisturbed, tmp_path: Path) -> None:
    join = JoinSpec("127.0.0.1", free_port())
    run = start(Script("exact.py", holds=(20, 40)), (1, 1, 2), join=join)
    run.at(20)
    token = JoinToken.create(run.folder.launcher_pin())
    run.folder.offer_token(token.digest, utc_now(), timedelta(minutes=5))
    machine = run.base / "machine"
    machine.mkdir()
    at = f"{join.address}:{join.port}"
    words = [sys.executable, "-m", "elastic_runtime.agent.join", "scripted", "--at", at, "--directory", str(machine)]
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    with (machine / "log").open("wb") as log:
        joined = subprocess.Popen(words, env={**kept, TOKEN_VARIABLE: token.text()}, stderr=log)
    try:
        run.worlds(1, 2)
        worker = next(each for each in run.status().workers if each.name == "joined-1")
        assert [os.readlink(f"/proc/{pid}/cwd") for pid in worker.pids[1:]] == [str(machine)]
        assert run.status().target_size == 1
        run.go(20)
        run.at(40)
        joined.send_signal(signal.SIGTERM)
        run.worlds(1, 2, 1)
        assert joined.wait(timeout=run.max_wait) == 0, (machine / "log").read_text()
    finally:
        joined.kill()
        joined.wait()
    status = run.succeed()

    assert run.events(EventKind.JOINED, EventKind.NOTICE, EventKind.LEFT, EventKind.LOST, EventKind.RANK_FAILED)[
        :3
    ] == [
        *("joined joined-1", "notice joined-1", "left joined-1"),
    ]
    assert next(each for each in status.workers if each.name == "joined-1").state is WorkerState.LEFT
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    written = (machine / "log").read_text() + run.log()
    assert token.text() not in written
    assert token.secret.hex() not in written
