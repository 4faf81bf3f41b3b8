"""Lightning's example of a language model, unchanged and with a few lines changed, on a text that is made here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.conftest import NO_HANDLER, Train, change

pytestmark = pytest.mark.timeout(600)

WORDS, BLOCK, EVALUATED = 20, 35, 4000
"""Of each sample; samples that the script sets aside."""
SAMPLES = 480
"""Others."""
GOES_ON = {
    "import torch\n": ("import os\nfrom elastic_runtime.torch.lightning import CheckpointAtRestart\nimport torch\n"),
    "    trainer = L.Trainer(gradient_clip_val=0.25, max_epochs=20)\n": (
        '    checkpoint = CheckpointAtRestart("checkpoints", save_every=2)\n'
        '    size, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])\n'
        '    placed = {"strategy": "ddp", "devices": here, "num_nodes": size // here}\n'
        "    trainer = L.Trainer(gradient_clip_val=0.25, max_epochs=20, callbacks=[checkpoint], **placed)\n"
    ),
    "    trainer.fit(model, train_dataloader, val_dataloader)\n": (
        "    trainer.fit(model, train_dataloader, val_dataloader, ckpt_path=checkpoint.newest)\n"
    ),
}


@pytest.fixture
def example(checkout: Callable[[str, str], Path]) -> Path:
    folder = checkout("pytorch-lightning", "examples/pytorch/basics")
    words = [f"word{number % WORDS}" for number in range((EVALUATED + SAMPLES + 1) * BLOCK)]
    (folder / "data").mkdir()
    (folder / "data" / "wikitext-2.txt").write_text(" ".join(words))
    return folder


def test_as_it_is_each_rank_trains_alone_and_the_run_says_so(example: Path, train: Train) -> None:
    script = train(example, "transformer.py")
    script.sizes_a_notice_and_a_loss(to_the_end=False)
    assert {step for _, _, _, step, _ in script.steps()} == {1, 2, 3}, "each of the worlds began at 0"
    (warning,) = [each for each in script.warnings() if "process group" in each]
    assert warning.startswith("the script trains without a process group: each rank trains a model of its own")


def test_with_seven_lines_changed_it_loses_nothing_by_a_planned_change(example: Path, train: Train) -> None:
    change(example / "transformer.py", GOES_ON, documented=True)
    script = train(example, "transformer.py")
    script.sizes_a_notice_and_a_loss(to_the_end=False)
    # The SIGKILL came after the step 12, and a checkpoint after 11. The last world stands at 14.
    assert {path.stem for path in (example / "checkpoints").glob("step-*")} == {"step-000000011", "step-000000013"}
    assert not [each for each in script.warnings() if NO_HANDLER in each], "but of one rank, that was alone"
