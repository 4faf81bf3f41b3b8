"""Transformers' run_clm.py, unchanged and with a few lines changed; its tokenizer and its texts are made here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import transformers

from tests.scripts.conftest import NO_HANDLER, Steered, Train, change

pytestmark = pytest.mark.timeout(400)

STEPS, BLOCK = 20, 8
WORDS = [f"word{number}" for number in range(20)]
GOES_ON = {
    "from transformers.utils.versions import require_version\n": (
        "from transformers.utils.versions import require_version\n"
        "from elastic_runtime.torch.transformers import CheckpointAtRestart, newest_checkpoint\n"
    ),
    "        processing_class=tokenizer,\n": (
        "        processing_class=tokenizer,\n        callbacks=[CheckpointAtRestart()],\n"
    ),
    "        checkpoint = None\n": "        checkpoint = newest_checkpoint(training_args.output_dir)\n",
}


@pytest.fixture
def run_clm(checkout: Callable[[str, str], Path]) -> Path:
    folder = checkout("transformers", "examples/pytorch/language-modeling")
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, model_max_length=BLOCK).save_pretrained(
        folder / "tokenizer"
    )
    lines = [" ".join(WORDS[(line + word) % len(WORDS)] for word in range(BLOCK)) for line in range(200)]
    (folder / "train.txt").write_text("\n".join(lines))
    return folder


def begin(train: Train, folder: Path) -> Steered:
    model = ("--model_type", "gpt2", "--config_overrides", "n_embd=8,n_head=1,n_layer=1,n_positions=8,vocab_size=21")
    data = ("--tokenizer_name", "tokenizer", "--train_file", "train.txt", "--block_size", str(BLOCK), "--do_train")
    training = ("--per_device_train_batch_size", "2", "--max_steps", str(STEPS), "--save_steps", "2", "--use_cpu")
    output = ("--output_dir", "out", "--report_to", "none", "--disable_tqdm", "true")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    return train(folder, "run_clm.py", *model, *data, *training, *output, environment=offline)


def test_as_it_is_it_starts_over_at_each_change_and_the_run_says_so(run_clm: Path, train: Train) -> None:
    """It writes checkpoints, but goes on only from one that its command line names."""
    script = begin(train, run_clm)
    script.sizes_a_notice_and_a_loss()
    assert (run_clm / "out" / "checkpoint-2").is_dir()
    last = {pid: step for pid, _, rank, step, _ in script.steps() if rank == 0}
    assert sorted(last.values()) == [3, 3, 3, 3, STEPS], "each of five worlds began at 0"
    (warning,) = script.warnings()
    assert warning.startswith(NO_HANDLER)


def test_with_three_lines_changed_it_loses_nothing_by_a_planned_change(run_clm: Path, train: Train) -> None:
    change(run_clm / "run_clm.py", GOES_ON, documented=True)
    script = begin(train, run_clm)
    script.sizes_a_notice_and_a_loss()
    # The SIGKILL came after the step 12, before its checkpoint; the one before is of 10.
    last = {pid: step for pid, _, rank, step, _ in script.steps() if rank == 0}
    assert sorted(last.values()) == [3, 3, 3, 3, STEPS - 10]
    assert not [each for each in script.warnings() if NO_HANDLER in each], "but of one rank, that was alone"
