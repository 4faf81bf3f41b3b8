"""Scripts that are written for torchrun: the same file there and here, through sizes, a notice and a loss."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from elastic_runtime.spec import RecoverySpec, RestartSpec
from elastic_runtime.status import EventKind
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import SCRIPTS, Script

pytestmark = pytest.mark.timeout(180)

STEPS, EVERY = 24, 8


class Plain:
    """``plain_torchrun.py``, as a test steers it by files."""

    def __init__(self, folder: Path, *stands: int) -> None:
        self.folder = folder
        for step in stands:
            (folder / f"stand-{step}").touch()

    @property
    def words(self) -> tuple[str, ...]:
        return str(self.folder), str(STEPS), str(EVERY)

    def at(self, run: ScriptedRun, step: int) -> None:
        run.until((self.folder / f"at-{step}").exists, f"it stands at {step}")

    def go(self, step: int) -> None:
        (self.folder / f"stand-{step}").unlink()

    def steps(self) -> Counter[int]:
        return Counter(int(line.split()[0]) for line in (self.folder / "steps").read_text().splitlines())


def test_torchrun_runs_it(tmp_path: Path) -> None:
    plain = Plain(tmp_path)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [sys.executable, *command, str(SCRIPTS / "plain_torchrun.py"), *plain.words]
    subprocess.run(words, check=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert plain.steps() == Counter(range(1, STEPS + 1))


def test_it_goes_through_sizes_a_notice_and_a_loss(start: Start, tmp_path: Path) -> None:
    plain = Plain(tmp_path, 3, 6, 11, 20)
    run = start(
        Script("plain_torchrun.py", plain.words),
        (1, 2, 3),
        engine="torchrun",
        restart=RestartSpec("SIGUSR1", grace=20.0),
        recovery=RecoverySpec(backoff=0.5),
    )
    plain.at(run, 3)
    run.resize(3)
    run.worlds(2, 3)
    plain.go(3)
    plain.at(run, 6)
    run.resize(2)
    run.worlds(2, 3, 2)
    plain.go(6)
    plain.at(run, 11)
    run.reclaim(run.worker(0).name)
    run.worlds(2, 3, 2, 1, 2)
    assert run.events(EventKind.RESTARTED, EventKind.LOST, EventKind.RANK_FAILED) == []
    plain.go(11)
    plain.at(run, 20)
    run.kill_rank(0)
    run.until_status(lambda status: run.events(EventKind.RESTARTED) and status.world_size == 2, "another start")
    plain.go(20)
    run.succeed()
    again = Counter(range(STEPS // EVERY * EVERY - EVERY + 1, 21))
    assert plain.steps() == Counter(range(1, STEPS + 1)) + again, "from the last checkpoint to the loss, twice"


def test_a_script_hears_a_notice(start: Start, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    script = tmp_path / "listening.py"
    script.write_text(f"""
import pathlib, signal, time, torch
from elastic_runtime import notice, on_notice
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
heard, told = pathlib.Path({str(heard)!r}), []
on_notice(lambda word: told.append(word))
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
while not heard.exists():
    pathlib.Path({str(tmp_path / "here")!r}).touch()
    optimizer.step()
    if told and told[0].mine and notice() is not None:
        heard.touch()
    time.sleep(0.01)
""")
    run = start(
        Script("none"), (1, 1, 1), engine="torchrun", command=("python", str(script)), restart=RestartSpec("SIGUSR1")
    )
    run.until((tmp_path / "here").exists, "it trains")
    run.until_status(lambda status: status.world_size == 1, "the status knows")
    run.reclaim(run.worker(0).name)
    run.succeed()
    assert heard.exists()
