"""A machine that joins a run by hand: a process of its own, with a folder and an environment of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from elastic_runtime.agent.join import TOKEN_VARIABLE
from elastic_runtime.clock import utc_now
from elastic_runtime.net.certificates import certified_address
from elastic_runtime.run.join import JoinToken, pin_of
from elastic_runtime.run.status import EventKind, WorkerState
from tests.local.harness import ScriptedRun
from tests.paced import Undisturbed

NAME = "joined-1"


class JoinedMachine:
    """It joins at once. Args: run: that it joins, with ``join``."""

    def __init__(self, run: ScriptedRun) -> None:
        assert run.spec.join
        certificate = run.folder.launcher_certificate()
        self.token = JoinToken.create(pin_of(certificate))
        run.folder.offer_token(self.token.digest, utc_now(), timedelta(minutes=5))
        self.folder = run.base / "machine"
        self.folder.mkdir()
        at = f"{certified_address(certificate)}:{run.spec.join.port}"
        command = [sys.executable, "-m", "elastic_runtime.agent.join", run.spec.name, "--at", at]
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--directory", str(self.folder)],
                env={**kept, TOKEN_VARIABLE: self.token.text()},
                stderr=log,
            )

    @property
    def log(self) -> Path:
        """What its command writes."""
        return self.folder / "log"


@contextmanager
def joining(run: ScriptedRun) -> Iterator[JoinedMachine]:
    """A machine joins the run; it is gone afterwards."""
    machine = JoinedMachine(run)
    try:
        yield machine
    finally:
        machine.process.kill()
        machine.process.wait()


def trains_and_leaves(run: ScriptedRun, undisturbed: Undisturbed) -> JoinedMachine:
    """Have a run of ``exact.py`` that holds at 20 and 40 with one worker joined and left, and assert what follows."""
    run.at(20)
    with joining(run) as machine:
        run.worlds(1, 2)
        worker = next(each for each in run.status().workers if each.name == NAME)
        assert [os.readlink(f"/proc/{pid}/cwd") for pid in worker.pids[1:]] == [str(machine.folder)]
        assert run.status().target_size == 1
        run.go(20)
        run.at(40)
        machine.process.send_signal(signal.SIGTERM)
        run.worlds(1, 2, 1)
        assert machine.process.wait(timeout=run.max_wait) == 0, machine.log.read_text()
    status = run.succeed()
    events = run.events(EventKind.JOINED, EventKind.NOTICE, EventKind.LEFT, EventKind.LOST, EventKind.RANK_FAILED)
    assert events[:3] == [f"joined {NAME}", f"notice {NAME}", f"left {NAME}"]
    assert next(each for each in status.workers if each.name == NAME).state is WorkerState.LEFT
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    return machine
