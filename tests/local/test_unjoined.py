"""Scripts whose ranks train without each other: the run says so, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.spec import RestartSpec
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)

RESTARTS: dict[str, Any] = {"engine": "torchrun", "restart": RestartSpec()}
HEAD = """
import os, pathlib, time, torch
from elastic_runtime.torch import report
folder = pathlib.Path(__file__).parent
"""
STEPS = """
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], 0.1)
step = 0
while not (folder / "end").exists():
    step += 1
    parameter.grad = torch.ones(1)
    optimizer.step()
    (folder / f"trains-{os.environ.get('RANK', os.getpid())}").touch()
    time.sleep(0.02)
"""
REPORTS = """
while not (folder / "end").exists():
    report(step=7, loss=1.0)
    (folder / f"trains-{os.environ['RANK']}").touch()
    time.sleep(0.02)
"""


def begin(start: Start, folder: Path, script: str, ranks: int, **spec: Any) -> ScriptedRun:
    """Each rank leaves a file that it trains, and ends once there is one that says so."""
    (folder / "script.py").write_text(HEAD + script)
    command = ("python", str(folder / "script.py"))
    return start(Script("none"), (ranks, ranks, ranks), command=command, **spec)


def warnings(run: ScriptedRun) -> list[str]:
    return [event.message for event in run.status().events if event.kind is EventKind.WARNING]


@pytest.mark.parametrize(
    "script", [STEPS, pytest.param(REPORTS, marks=pytest.mark.long)], ids=["an optimizer's steps", "reports"]
)
def test_ranks_without_a_process_group_are_told_of(start: Start, tmp_path: Path, script: str) -> None:
    """As with Lightning's Trainer, which takes one device of a machine without GPUs unless it is told otherwise."""
    run = begin(start, tmp_path, script, 2, **RESTARTS)
    run.until_status(lambda status: any(event.kind is EventKind.WARNING for event in status.events), "it is told")
    (tmp_path / "end").touch()
    run.succeed()
    [told] = warnings(run)
    assert told.startswith("the script trains without a process group: each rank trains a model of its own")
    assert "init_process_group()" in told


def test_a_process_group_over_another_address_is_one(start: Start, tmp_path: Path) -> None:
    own = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(os.environ["RANK"]), world_size=2)
"""
    run = begin(start, tmp_path, own + STEPS.replace("touch()\n", "write_text(str(step))\n"), 2, **RESTARTS)

    def trained() -> bool:
        noted = [tmp_path / f"trains-{rank}" for rank in range(2)]
        return all(each.exists() and int(each.read_text() or 0) > 10 for each in noted)

    run.until(trained, "both train")
    (tmp_path / "end").touch()
    run.succeed()
    assert warnings(run) == []


def test_a_rank_that_is_alone_needs_none_and_is_heard(start: Start, tmp_path: Path) -> None:
    run = begin(start, tmp_path, REPORTS, 1, **RESTARTS)
    run.until_status(lambda status: status.step == 7 and status.metrics == {"loss": 1.0}, "its report")
    (tmp_path / "end").touch()
    run.succeed()
    assert warnings(run) == []


@pytest.mark.parametrize(("engine", "remedy"), [("torch", "@elastic.run"), ("horovod", "hvd.init()")])
def test_a_script_that_never_joins_an_elastic_world_is_told_how_to(
    start: Start, tmp_path: Path, engine: str, remedy: str
) -> None:
    run = begin(start, tmp_path, STEPS, 2, engine=engine)
    run.until_status(lambda status: any(event.kind is EventKind.WARNING for event in status.events), "it is told")
    [told] = warnings(run)
    assert remedy in told
    (tmp_path / "end").touch()
    assert run.end().phase.final
