"""Scripts that are written for torchrun: the same file there and here, through sizes, a notice and a loss."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from elastic_runtime.run.spec import RestartSpec
from tests.local.conftest import Start
from tests.paced import SCRIPTS, Script
from tests.plain_torchrun import SPEC, STEPS, Plain, sized_noticed_and_lost, through_sizes_a_notice_and_a_loss

pytestmark = pytest.mark.timeout(300)


def test_torchrun_runs_it(tmp_path: Path) -> None:
    plain = Plain(tmp_path)
    # Python's own end aborts the process where one of Gloo's threads still frees the last collective's tensors: one
    # such run in twelve did ("terminate called without an active exception", torch 2.13, pytorch/pytorch#56297).
    ending = tmp_path / "ending.py"
    ending.write_text(f"""
import os, runpy
kept = runpy.run_path({str(SCRIPTS / "plain_torchrun.py")!r}, run_name="__main__")
os._exit(0)
""")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [sys.executable, *command, str(ending), *plain.script.arguments]
    subprocess.run(words, check=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert plain.steps() == Counter(range(1, STEPS + 1))


@pytest.mark.shows(engine="torchrun", fault=("resize", "notice", "rank"), place="local")
def test_it_goes_through_sizes_a_notice_and_a_loss(start: Start, tmp_path: Path) -> None:
    plain = sized_noticed_and_lost(tmp_path)
    run = start(plain.script, (1, 2, 3), **SPEC)
    through_sizes_a_notice_and_a_loss(run, plain, run.reclaim, run.succeed)


def test_a_script_that_ends_right_after_a_collective_ends(start: Start, tmp_path: Path) -> None:
    """Its model and its process group go with its globals, at once, before Gloo's thread has freed that collective."""
    script = tmp_path / "ending.py"
    script.write_text("""
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.zeros(2, 4)).sum().backward()
sys.setswitchinterval(60)  # Nobody takes Python's lock away in between.
dist.all_reduce(torch.ones(100_000))
dist.destroy_process_group()
""")
    command = ("python", str(script))
    start(Script("none"), (2, 2, 2), engine="torchrun", command=command, restart=RestartSpec()).succeed()


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
