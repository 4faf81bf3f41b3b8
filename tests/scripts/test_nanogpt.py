"""nanoGPT's train.py, unchanged and with a few lines changed, on a data set of a few characters."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from tests.scripts.conftest import DOCS, NO_HANDLER, Train, change

pytestmark = pytest.mark.timeout(300)

CONFIG = """
dataset, backend, dtype, compile = 'tiny', 'gloo', 'float32', False
n_layer, n_head, n_embd, block_size, batch_size = 1, 1, 8, 8, 2
eval_interval, eval_iters, max_iters = 2, 1, 20
gradient_accumulation_steps = {accumulated}
"""
RESUMES = "init_from = 'resume' if os.path.exists('out/ckpt.pt') else 'scratch'\n"
"""A line of its configuration file: train.py executes that file, and knows ``os``."""
IMPORTS, COUNTS = "import os\nimport time\n", "    iter_num += 1\n"
TOLD = {
    IMPORTS: IMPORTS + "from elastic_runtime.torch import report\n",
    COUNTS: COUNTS + "    report(step=iter_num)\n",
}
ASKED = {
    IMPORTS: IMPORTS + "from elastic_runtime.torch.restarts import RestartRequest\n",
    "iter_num = 0\n": "iter_num = 0\nrequest = RestartRequest()\n",
    "    if iter_num % eval_interval == 0 and master_process:\n": (
        "    asked = request.agreed()\n    if (asked or iter_num % eval_interval == 0) and master_process:\n"
    ),
    "                torch.save(checkpoint, os.path.join(out_dir, 'ckpt.pt'))\n": (
        "                torch.save(checkpoint, os.path.join(out_dir, 'part.pt'))\n"
        "                os.replace(os.path.join(out_dir, 'part.pt'), os.path.join(out_dir, 'ckpt.pt'))\n"
    ),
    "    if iter_num == 0 and eval_only:\n": "    if asked or iter_num == 0 and eval_only:\n",
}


@pytest.fixture
def nanogpt(checkout: Callable[[str, str], Path]) -> Path:
    folder = checkout("nanoGPT", ".")
    data = folder / "data" / "tiny"
    data.mkdir()
    text = "the quick brown fox jumps over the lazy dog. " * 40
    letters = sorted(set(text))
    codes = numpy.array([letters.index(each) for each in text], dtype=numpy.uint16)
    codes.tofile(data / "train.bin")
    codes[:400].tofile(data / "val.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters)}))
    return folder


def configured(folder: Path, accumulated: int = 6, more: str = "") -> str:
    """The configuration file's name."""
    (folder / "config" / "tiny.py").write_text(CONFIG.format(accumulated=accumulated) + more)
    return "config/tiny.py"


def test_as_it_is_it_starts_over_at_each_change_and_the_run_says_so(nanogpt: Path, train: Train) -> None:
    script = train(nanogpt, "train.py", configured(nanogpt))
    script.sizes_a_notice_and_a_loss()
    began = [int(line.split(":")[0]) for line in script.told("iter ")]
    assert began.count(0) == 5, "each of five worlds began at 0"
    assert max(began) == 20
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)
    assert "does again what came after its own newest checkpoint, or all" in warning


def test_with_one_line_of_configuration_it_goes_on_from_its_own_checkpoint(nanogpt: Path, train: Train) -> None:
    script = train(nanogpt, "train.py", configured(nanogpt, more=RESUMES))
    script.sizes_a_notice_and_a_loss()
    iterations = [int(line.split(":")[0]) for line in script.told("iter ")]
    assert iterations == list(range(21))
    # Each of four changes came after three steps, of which the last one, not printed yet, was after the checkpoint.
    assert len([rank for _, _, rank, *_ in script.steps() if rank == 0]) == 21 + 4
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)


def test_with_seven_lines_changed_it_loses_nothing_by_a_planned_change(nanogpt: Path, train: Train) -> None:
    change(nanogpt / "train.py", ASKED, documented=True)
    assert RESUMES.strip() in DOCS.read_text()
    script = train(nanogpt, "train.py", configured(nanogpt, more=RESUMES))
    script.sizes_a_notice_and_a_loss()
    # The SIGKILL came after the steps 9, 10, 11, and a checkpoint after the tenth, 9.
    assert sorted(int(line.split(":")[0]) for line in script.told("iter ")) == sorted([*range(21), 10])
    assert len([rank for _, _, rank, *_ in script.steps() if rank == 0]) == 21 + 2
    assert not [each for each in script.warnings() if NO_HANDLER in each], "but of one rank, that was alone"


def test_with_a_step_told_the_run_says_that_it_started_over(nanogpt: Path, train: Train) -> None:
    change(nanogpt / "train.py", TOLD)
    script = train(nanogpt, "train.py", configured(nanogpt))
    script.stands(2)
    script.run.until_status(lambda status: status.step == 2, "the steps that are told")
    script.run.resize(3)
    script.stands(3)
    script.succeed()
    over, handler = sorted(script.warnings(), key=lambda message: "started over" not in message)
    assert over.startswith("the script started over: step 1 after 2; ")
    assert handler.startswith(NO_HANDLER)


def test_a_size_that_its_assert_refuses_leads_back_to_the_one_before(nanogpt: Path, train: Train) -> None:
    script = train(nanogpt, "train.py", configured(nanogpt, accumulated=40))
    script.stands(2)
    script.run.resize(3)
    script.stands(2)
    script.run.until_status(lambda status: (status.world_size, status.target_size) == (2, 2), "as before")
    script.succeed()
    assert script.run.status().rank_failures == 0
    refused = [each for each in script.warnings() if "failed in a world of 3 ranks" in each]
    assert len(refused) == 1
    assert "AssertionError" in refused[0]
    assert "The run goes back to 2, which had worked" in refused[0]
