"""Horovod's own examples for torch, unchanged; images and models of torchvision are stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script
from tests.scripts.conftest import NO_HANDLER
from tests.steered import STANDIN, Steered, steering
from tests.stock_scripts import HOLDS, RECOVERY, TORCH

STATIC = {
    "pytorch_mnist.py": ("--batch-size=16", "--epochs=4", "--no-cuda"),
    "pytorch_synthetic_benchmark.py": (
        *("--batch-size=4", "--num-iters=2", "--num-batches-per-iter=4", "--num-warmup-batches=2", "--no-cuda"),
    ),
}
"""Those without an elastic state: arguments for few, small steps."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TORCH)
def test_no_step_is_done_twice(start: Start, checkout: Callable[[str, str], Path], name: str) -> None:
    """Two ranks, three, two; a notice; a SIGKILL."""
    path = checkout("horovod", "examples/elastic/pytorch") / name
    run = start(Script("horovods.py", (str(path), *TORCH[name]), holds=(*HOLDS, 20)), (1, 2, 3), recovery=RECOVERY)
    run.at(4)
    run.resize(3)
    run.worlds(2, 3)
    run.go(4)
    run.at(8)
    run.resize(2)
    run.worlds(2, 3, 2)
    run.go(8)
    run.at(12)
    taken = run.worker(0).name
    run.reclaim(taken)
    run.until_status(
        lambda status: (
            status.world_size == 2
            and {rank for each in status.workers for rank in each.ranks if each.name != taken} == {0, 1}
        ),
        "another worker is in its place",
    )
    assert run.events(EventKind.RANK_FAILED, EventKind.LOST) == []
    run.go(12)
    run.at(16)
    run.kill_rank(1)
    run.at(20)  # The one that is left goes on from its commit, 16.
    run.until_status(
        lambda status: run.events(EventKind.RANK_FAILED, EventKind.LOST) and status.world_size == 2,
        "two after the loss",
    )
    run.succeed()
    assert len(run.events(EventKind.RANK_FAILED, EventKind.LOST)) == 1
    assert run.events(EventKind.RESTARTED, EventKind.WARNING) == []
    assert set(run.ledger().steps().values()) == {1}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STATIC)
def test_a_static_script_starts_over_in_each_world(
    start: Start, checkout: Callable[[str, str], Path], tmp_path: Path, name: str
) -> None:
    """None of them writes a checkpoint, or handles the signal."""
    path = checkout("horovod", "examples/pytorch") / name
    run = start(
        Script("horovods.py", (str(path), *STATIC[name])),
        (1, 2, 3),
        engine="horovodrun",
        path=(STANDIN,),
        restart=RestartSpec(grace=20.0),
        recovery=RecoverySpec(backoff=0.5),
        environment={**steering(tmp_path, 3), "ELASTIC_RUNTIME_PRELOAD": "held_torch"},
    )
    script = Steered(run, tmp_path, 3)
    script.sizes_a_notice_and_a_loss()
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)
    assert [note["size"] for note in run.notes() if "done" in note] == [2, 2]
