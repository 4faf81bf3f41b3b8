"""timm's train.py, unchanged and with a line added, on images of noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from PIL import Image

from tests.scripts.conftest import NO_HANDLER, Steered, Train, change

pytestmark = pytest.mark.timeout(400)

SAMPLES, BATCH, EPOCHS = 16, 2, 6
RESUMES = {
    "    resume_epoch = None\n": (
        "    resume_epoch = None\n    args.resume = args.resume if os.path.exists(args.resume) else ''\n"
    )
}
LAST = "output/train/run/last.pth.tar"


@pytest.fixture
def timm(checkout: Callable[[str, str], Path]) -> Path:
    folder = checkout("pytorch-image-models", ".")
    noise = numpy.random.default_rng(0)
    for index in range(SAMPLES):
        path = folder / "data" / "train" / f"class-{index % 2}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), dtype=numpy.uint8)).save(path)
    return folder


def begin(train: Train, folder: Path, *more: str) -> Steered:
    """Each world is held after the step 5 of its own, in the second epoch that it begins: one has 4 steps, or 3."""
    model = ("--model", "test_resnet", "--num-classes", "2", "--input-size", "3", "32", "32", "--no-aug")
    training = ("--batch-size", str(BATCH), "--epochs", str(EPOCHS), "--warmup-epochs", "0", "--val-split", "")
    command = ("train.py", "--data-dir", "data", "--device", "cpu", "--workers", "1", "--experiment", "run")
    return train(folder, *command, *model, *training, *more, held_after=5)


def test_as_it_is_it_starts_over_at_each_change_and_the_run_says_so(timm: Path, train: Train) -> None:
    """It writes a checkpoint after each epoch, but goes on only from one that its command line names."""
    script = begin(train, timm)
    script.sizes_a_notice_and_a_loss()
    assert (timm / LAST).exists()
    last = {pid: step for pid, _, rank, step, _ in script.steps() if rank == 0}
    assert sorted(last.values()) == [5, 5, 5, 5, EPOCHS * SAMPLES // (2 * BATCH)], "each of five worlds began at 0"
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)


def test_with_a_line_added_it_loses_the_epoch_at_work(timm: Path, train: Train) -> None:
    change(timm / "train.py", RESUMES, documented=True)
    script = begin(train, timm, "--resume", LAST)
    script.sizes_a_notice_and_a_loss()
    # Each of four worlds has ended an epoch, and began the next in vain.
    last = {pid: step for pid, _, rank, step, _ in script.steps() if rank == 0}
    assert sorted(last.values()) == [5, 5, 5, 5, (EPOCHS - 4) * SAMPLES // (2 * BATCH)]
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)
