"""Accelerate's own example with checkpoints, unchanged; its data, its model and its metric are stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.conftest import HUB, NO_HANDLER, Train, change

pytestmark = pytest.mark.timeout(300)

OFFLINE: dict[str, Any] = {"standins": (HUB,), "environment": {"HF_HUB_OFFLINE": "1"}}


def test_as_it_is_it_starts_over_at_each_change_and_the_run_says_so(
    checkout: Callable[[str, str], Path], train: Train
) -> None:
    """It writes checkpoints, but goes on only from one that its command line names."""
    folder = checkout("accelerate", "examples/by_feature")
    script = train(folder, "checkpointing.py", "--cpu", "--checkpointing_steps", "2", **OFFLINE)
    script.sizes_a_notice_and_a_loss()
    assert (folder / "step_2").is_dir()
    last = {pid: step for pid, _, rank, step, _ in script.steps() if rank == 0}
    assert sorted(last.values()) == [3, 3, 3, 3, 30], "each of five worlds began at 0"
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)


ASKED = {
    "from accelerate.utils import set_seed\n": (
        "from accelerate.utils import set_seed\nfrom elastic_runtime.torch.accelerate import CheckpointAtRestart\n"
    ),
    "    overall_step = 0\n": (
        '    checkpoint = CheckpointAtRestart(accelerator, "checkpoints", save_every=2)\n'
        "    overall_step = checkpoint.resume()\n"
    ),
    "        for step, batch in enumerate(active_dataloader):\n": (
        "        for step, batch in enumerate(checkpoint.batches(train_dataloader, epochs=epoch + 1)):\n"
    ),
    "            overall_step += 1\n": "            overall_step += 1\n            checkpoint.after(overall_step)\n",
}


def test_with_five_lines_changed_it_loses_nothing_by_a_planned_change(
    checkout: Callable[[str, str], Path], train: Train
) -> None:
    folder = checkout("accelerate", "examples/by_feature")
    change(folder / "checkpointing.py", ASKED, documented=True)
    script = train(folder, "checkpointing.py", "--cpu", **OFFLINE)
    script.sizes_a_notice_and_a_loss()
    # An epoch has 20 batches of a rank. The SIGKILL came after the step 12, and a checkpoint after 11, with 16 batches
    # of the second epoch to go.
    last = {pid: step for pid, _, rank, step, _ in script.steps() if rank == 0}
    assert sorted(last.values()) == [3, 3, 3, 3, 8 + 10]
    assert not [each for each in script.warnings() if NO_HANDLER in each], "but of one rank, that was alone"
