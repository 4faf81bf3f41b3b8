"""A machine that joins a run by hand: a process of its own, with a folder and an environment of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from elastic_runtime.agent.join import TOKEN_VARIABLE
from elastic_runtime.clock import utc_now
from elastic_runtime.net.certificates import certified_address
from elastic_runtime.run.join import JoinToken, join_command, pin_of
from elastic_runtime.run.status import EventKind, Phase, WorkerState
from tests.local.harness import ScriptedRun
from tests.paced import ResizedRun, Undisturbed

NAME = "joined-1"


def command_for(run: ScriptedRun) -> str:
    """As a token's command is printed."""
    assert run.spec.join
    certificate = run.folder.launcher_certificate()
    token = JoinToken.create(pin_of(certificate))
    run.folder.offer_token(token.digest, utc_now(), timedelta(minutes=5))
    return join_command(run.spec.name, certified_address(certificate), run.spec.join.port, token.text())


class JoinedMachine:
    """It joins at once.

    Args:
        command: as ``elastic-training token`` prints it.
        base: folder, in which it has one.
        python: of its environment.
    """

    def __init__(self, command: str, base: Path, python: str) -> None:
        self.folder = base / "machine"
        self.folder.mkdir()
        _, name, *at, _, token = command.split()
        self.token = JoinToken.parse(token)
        words = [python, "-m", "elastic_runtime.agent.join", name, *at, "--directory", str(self.folder)]
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        with self.log.open("wb") as log:
            # Its ranks and those of pods, which are of another user, write the same files.
            self.process = subprocess.Popen(words, env={**kept, TOKEN_VARIABLE: token}, stderr=log, umask=0)

    @property
    def log(self) -> Path:
        """What its command writes."""
        return self.folder / "log"


@contextmanager
def joining(command: str, base: Path, python: str) -> Iterator[JoinedMachine]:
    """A machine joins a run; it is gone afterwards. Arguments as :class:`JoinedMachine`."""
    machine = JoinedMachine(command, base, python)
    try:
        yield machine
    finally:
        machine.process.kill()
        machine.process.wait()


def trains_and_leaves(
    run: ResizedRun, undisturbed: Undisturbed, command: Callable[[], str] | None = None, python: str = sys.executable
) -> JoinedMachine:
    """Have a run of ``exact.py`` that holds at 20 and 40 with one worker joined and left, and assert what follows.

    Args:
        run: it.
        undisturbed: what it comes to by itself.
        command: returns what its token's command is. None: of a run in a folder.
        python: of the machine's environment.
    """
    run.at(20)
    if command is None:
        assert isinstance(run, ScriptedRun)
        command = partial(command_for, run)
    with joining(command(), run.base, python) as machine:
        run.worlds(1, 2)
        worker = next(each for each in run.status().workers if each.name == NAME)
        assert [os.readlink(f"/proc/{pid}/cwd") for pid in worker.pids[1:]] == [str(machine.folder)]
        assert run.status().target_size == 1
        run.go(20)
        run.at(40)
        machine.process.send_signal(signal.SIGTERM)
        run.worlds(1, 2, 1)
        assert machine.process.wait(timeout=run.max_wait) == 0, machine.log.read_text()
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED, run.report("succeeded")
    events = run.events(EventKind.JOINED, EventKind.NOTICE, EventKind.LEFT, EventKind.LOST, EventKind.RANK_FAILED)
    assert events[:3] == [f"joined {NAME}", f"notice {NAME}", f"left {NAME}"]
    assert next(each for each in status.workers if each.name == NAME).state is WorkerState.LEFT
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    return machine
