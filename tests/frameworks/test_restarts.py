"""The examples for Accelerate, DeepSpeed, Lightning, Megatron-Core and Transformers: sizes, a notice, and a loss."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import psutil
import pytest

from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from elastic_runtime.run.status import EventKind, Status
from elastic_runtime.torch.whole import SIZES
from tests.frameworks.conftest import EXAMPLES, SCRIPTS
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script

STEPS = 16


@pytest.mark.timeout(300)  # each world's processes import a framework
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("name", ["accelerate", "lightning", "transformers"])
def test_no_step_is_lost_by_a_planned_change(start: Start, tmp_path: Path, name: str, signal: str) -> None:
    """SIGTERM is what Restart has by default, and what Lightning handles itself."""
    goes_through_sizes_a_notice_and_a_loss(start, tmp_path, name, signal=signal)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_a_loss_costs_what_came_after_the_last_checkpoint_of_every_few_steps(
    start: Start, tmp_path: Path, name: str
) -> None:
    (tmp_path / "stand-8").touch()
    run = begin(start, tmp_path, name, "--save-every=3")
    run.until((tmp_path / "at-8").exists, "it stands at 8")
    run.until_status(lambda status: status.reason == "2 ranks train", "the status knows of 2 ranks")
    run.kill_rank(0)
    run.until_status(lambda status: run.events(EventKind.RESTARTED) and status.world_size == 2, "another start")
    (tmp_path / "stand-8").unlink()
    run.succeed()
    times = Counter(int(line.split()[0]) for line in (tmp_path / "steps").read_text().splitlines())
    assert times == {step: 2 if step in (7, 8) else 1 for step in range(1, STEPS + 1)}
    assert kept(tmp_path) == {"step-000000012", "step-000000015"}


def kept(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "checkpoints").iterdir() if path.name != SIZES}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_torn_checkpoints_are_passed_over(start: Start, tmp_path: Path, name: str) -> None:
    """One that a SIGKILL has cut off in its write, after the step 6, and later one that was whole, of the step 9."""
    (tmp_path / "stand-11").touch()
    run = begin(start, tmp_path, name, "--save-every=3", TORN_AT="6")
    run.until((tmp_path / "at-11").exists, "it stands at 11")
    begun = (tmp_path / "torn").read_text().splitlines()
    assert "step-000000006" not in str(begun)
    assert name == "lightning" or "part-000000006" in begun
    assert kept(tmp_path) == {"step-000000006", "step-000000009"}
    (torn,) = (tmp_path / "checkpoints").glob("step-000000009*")
    os.truncate(torn if torn.is_file() else torn / "optimizer.bin", 1000)
    run.until_status(lambda status: status.reason == "2 ranks train", "the status knows of 2 ranks")
    run.kill_rank(0)
    run.until_status(lambda status: len(run.events(EventKind.RESTARTED)) == 2 and status.world_size == 2, "the third")
    (tmp_path / "stand-11").unlink()
    run.succeed()
    times = Counter(int(line.split()[0]) for line in (tmp_path / "steps").read_text().splitlines())
    assert times == {step: 2 if step in (4, 5, 6, *range(7, 12)) else 1 for step in range(1, STEPS + 1)}
    (told,) = [line for line in run.log().splitlines() if "not whole: " in line]
    assert f"{torn} (" in told
    assert "has 1000 bytes, not " in told
    assert f"Step-000000006{torn.suffix} is taken instead" in told
    assert kept(tmp_path) == {"step-000000012", "step-000000015"}


@pytest.mark.timeout(1000)  # with what is compiled before the first
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_goes_on_from_its_universal_checkpoint(
    start: Start, tmp_path: Path, stage: int, deepspeed_operations: str
) -> None:
    made = {"TORCH_EXTENSIONS_DIR": deepspeed_operations}
    trains_as_if_undisturbed(start, tmp_path, "deepspeed", f"--stage={stage}", **made)


@pytest.mark.timeout(400)
def test_megatron_goes_on_from_its_distributed_checkpoint(start: Start, tmp_path: Path) -> None:
    """Its model is split in two in worlds of two, and whole in those of three and one."""
    trains_as_if_undisturbed(start, tmp_path, "megatron", ELASTIC_RUNTIME_PRELOAD="megatron.core")


def trains_as_if_undisturbed(start: Start, folder: Path, name: str, *options: str, **environment: str) -> None:
    """The losses of a run with all of it are those of a run without."""
    changed, alone = folder / "changed", folder / "alone"
    for each in (changed, alone):
        each.mkdir()
    goes_through_sizes_a_notice_and_a_loss(start, changed, name, *options, **environment)
    begin(start, alone, name, *options, **environment).succeed()
    assert losses(changed) == {step: pytest.approx(loss, abs=1e-5) for step, loss in losses(alone).items()}


def losses(folder: Path) -> dict[int, float]:
    """Step to the last loss that was written of it."""
    lines = (line.split() for line in (folder / "losses").read_text().splitlines())
    return {int(step): float(loss) for step, loss in lines}


def begin(
    start: Start, folder: Path, name: str, *options: str, signal: str = "SIGUSR1", **environment: str
) -> ScriptedRun:
    """Of that framework's example, with these options more."""
    example = (str(EXAMPLES / f"train_{name}.py"), f"--folder={folder}/checkpoints", f"--steps={STEPS}")
    return start(
        Script("none"),
        (1, 2, 3),
        engine="torchrun",
        command=("python", str(SCRIPTS / "steered.py"), *example, *options),
        restart=RestartSpec(signal, grace=60.0),
        recovery=RecoverySpec(backoff=0.5),
        environment={
            "STEERED": str(folder),
            "PYTHONPATH": os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")]),
            "ELASTIC_RUNTIME_PRELOAD": name,
            "HF_HUB_OFFLINE": "1",
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )


def pids_of(status: Status) -> list[int]:
    """Of the agents and ranks that are there."""
    return [pid for worker in status.workers if not worker.state.gone for pid in worker.pids]


def goes_through_sizes_a_notice_and_a_loss(
    start: Start, folder: Path, name: str, *options: str, signal: str = "SIGUSR1", **environment: str
) -> None:
    for step in (3, 6, 9, 12, 14):
        (folder / f"stand-{step}").touch()
    run = begin(start, folder, name, *options, signal=signal, **environment)

    def stands(step: int, size: int) -> None:
        run.until((folder / f"at-{step}").exists, f"it stands at {step}")
        # It may still be of the processes of a world before, of the same size.
        run.until_status(
            lambda status: status.reason == f"{size} ranks train" and all(map(psutil.pid_exists, pids_of(status))),
            f"the status knows of {size} ranks",
        )

    def go(step: int, *, ends: bool = True) -> None:
        if ends:
            run.until((folder / f"asked-{step}").exists, f"a rank is asked to end at {step}")
        (folder / f"stand-{step}").unlink()

    stands(3, 2)
    run.resize(3)
    go(3)
    stands(6, 3)
    run.resize(2)
    go(6)
    stands(9, 2)
    run.reclaim(run.worker(0).name)
    go(9)
    # The one that is left may come to 12 before another worker is there: then it is asked to end there.
    run.until((folder / "at-12").exists, "it stands at 12")
    asked = folder / "asked-12"
    run.until_status(lambda status: asked.exists() or len(status.history) == 5, "two, or one that is to end")
    go(12, ends=False)
    stands(14, 2)
    assert run.events(EventKind.RESTARTED, EventKind.LOST, EventKind.RANK_FAILED) == []
    run.kill_rank(0)
    run.until_status(lambda status: run.events(EventKind.RESTARTED) and status.world_size == 2, "another start")
    go(14, ends=False)
    run.succeed()

    done = [tuple(map(int, line.split())) for line in (folder / "steps").read_text().splitlines()]
    times = Counter(step for step, _ in done)
    assert sorted(times) == list(range(1, STEPS + 1))
    twice = {step for step, count in times.items() if count > 1}
    assert twice <= {10, 11, 12, 13, 14}, "nothing but what came after the last checkpoint, before the loss"
    sizes = dict(done)
    assert (sizes[3], sizes[6], sizes[STEPS]) == (2, 3, 2)
