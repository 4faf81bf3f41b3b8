"""PyTorch's own examples for torchrun, unchanged: a snapshot after each epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.conftest import HYDRA, NO_HANDLER, Train

pytestmark = pytest.mark.timeout(300)


def test_multigpu_torchrun_goes_on_from_its_snapshot(checkout: Callable[[str, str], Path], train: Train) -> None:
    """Four steps an epoch with two ranks, three with three: each world is in its third or fourth epoch when it ends.

    The script notes the number of the epoch that it has done, and goes on with that one, so it does two of them again.
    """
    folder = checkout("pytorch-examples", "distributed/ddp-tutorial-series")
    script = train(folder, "multigpu_torchrun.py", "10", "1", "--batch_size=256", held_after=10)
    script.sizes_a_notice_and_a_loss()
    begun = [int(line.split(" ")[0]) for line in script.told("[GPU0] Epoch ")]
    assert begun == [0, 1, 2, *(1, 2, 3, 4), *(3, 4, 5), *(4, 5, 6), *(5, 6, 7, 8, 9)]
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)


def test_mingpt_ddp_goes_on_from_its_snapshot(checkout: Callable[[str, str], Path], train: Train) -> None:
    """Eight steps an epoch with two ranks, six with three: each world is in its second epoch when it ends."""
    folder = checkout("pytorch-examples", "distributed/minGPT-ddp/mingpt")
    options = (
        *("data_config.path=data/input.txt", "data_config.block_size=16", "data_config.truncate=0.001"),
        *("gpt_config.n_layer=1", "gpt_config.n_head=1", "gpt_config.n_embd=16"),
        *("trainer_config.max_epochs=7", "trainer_config.batch_size=64", "trainer_config.save_every=1"),
        *("trainer_config.data_loader_workers=0", "trainer_config.use_amp=false"),
    )
    script = train(folder, "main.py", *options, held_after=10, standins=(HYDRA,))
    script.sizes_a_notice_and_a_loss()
    begun = [int(line.split(" ")[0]) for line in script.told("[RANK0] Epoch ") if "Train" in line]
    assert begun == [*(1, 2), *(2, 3), *(3, 4), *(4, 5), *(5, 6, 7)]
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)
