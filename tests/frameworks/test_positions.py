"""Where trainings go on: what the frameworks' helpers find in a folder, and which samples come next. One process."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch import transformers
from elastic_runtime.torch.accelerate import CheckpointAtRestart
from elastic_runtime.torch.transformers import newest_checkpoint


class Accelerator:
    """What the helper uses of Accelerate's, as one rank of a world."""

    is_main_process = True
    skip_first_batches = staticmethod(skip_first_batches)

    def __init__(self, size: int) -> None:
        self.num_processes = size

    def save_state(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)

    def load_state(self, path: str) -> None:
        assert Path(path).is_dir()


def loader_of(samples: int, batch: int, rank: int, size: int) -> Any:
    loader = torch.utils.data.DataLoader(range(samples), batch, shuffle=True)  # type: ignore[arg-type]  # it has what a dataset has
    return prepare_data_loader(
        loader, num_processes=size, process_index=rank, put_on_device=False, use_seedable_sampler=True, data_seed=7
    )


def world(folder: Path, size: int, samples: int, batch: int, epochs: int, steps: int) -> tuple[Counter[int], bool]:
    """Samples of all ranks of one that ends after so many steps, and whether the training was over before."""
    used: Counter[int] = Counter()
    over = False
    for rank in reversed(range(size)):  # rank 0 writes, so it is the last to read
        checkpoint = CheckpointAtRestart(Accelerator(size), folder, signal="SIGUSR2")
        step, over = checkpoint.resume(), True
        begun = step
        for data in checkpoint.batches(loader_of(samples, batch, rank, size), epochs):
            used.update(data.tolist())
            step += 1
            if step == begun + steps:
                over = False
                if rank == 0:
                    checkpoint.save(step)
                break
    return used, over


@settings(deadline=None, max_examples=60)
@given(
    st.integers(12, 60), st.integers(1, 4), st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=6),
)  # fmt: skip
def test_accelerate_leaves_out_no_sample_and_repeats_less_than_a_step_at_each_change(
    tmp_path_factory: pytest.TempPathFactory, samples: int, batch: int, epochs: int, worlds: list[tuple[int, int]]
) -> None:
    folder, used = tmp_path_factory.mktemp("run"), Counter[int]()
    over = False
    for size, steps in [*worlds, (2, 10**6)]:
        if not over:
            more, over = world(folder, size, samples, batch, epochs, steps)
            used += more
    assert over
    assert min(used[sample] for sample in range(samples)) >= epochs
    # Accelerate itself fills up the last step of an epoch from its beginning: with less than a step of three ranks.
    allowed = epochs * 3 * batch + len(worlds) * 2 * batch
    assert sum(used.values()) - epochs * samples <= allowed


def test_accelerate_with_a_loader_that_has_a_position_of_its_own_is_refused(tmp_path: Path) -> None:
    loader = loader_of(20, 4, 0, 1)
    loader.use_stateful_dataloader = True
    checkpoint = CheckpointAtRestart(Accelerator(1), tmp_path, signal="SIGUSR2")
    with pytest.raises(InvalidSettings, match="use_stateful_dataloader"):
        next(checkpoint.batches(loader))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Transformers itself has saved, at its steps 1 and 2."""
    output = tmp_path_factory.mktemp("saved")
    arguments = TrainingArguments(
        output_dir=str(output), max_steps=2, save_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=8,
    )  # fmt: skip
    words = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 4
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=words).train()
    return output


def test_transformers_has_no_newest_checkpoint_at_a_first_start(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "output") is None


@given(data=st.data())
def test_transformers_passes_over_a_checkpoint_that_is_torn_whatever_its_length(
    saved: Path, data: st.DataObject
) -> None:
    newest = saved / "checkpoint-2"
    assert newest_checkpoint(str(saved)) == str(newest)
    cut = {"trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
    assert cut <= {path.name for path in newest.iterdir()}
    file = newest / data.draw(st.sampled_from(sorted(cut)))
    written = file.read_bytes()
    # The last byte of the trainer's state ends its line.
    os.truncate(file, data.draw(st.integers(0, len(written) - 2)))
    try:
        assert newest_checkpoint(str(saved)) == str(saved / "checkpoint-1")
    finally:
        file.write_bytes(written)


def test_transformers_passes_over_a_checkpoint_without_the_trainers_state(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "output"
    shutil.copytree(saved, output)
    (output / "checkpoint-best").mkdir()
    (output / "checkpoint-10").mkdir()
    (output / "checkpoint-2" / "trainer_state.json").unlink()
    assert newest_checkpoint(output) == str(output / "checkpoint-1")
    (message,) = caplog.messages
    assert message == (
        f"not whole: {output}/checkpoint-10 (its trainer_state.json is not whole), "
        f"{output}/checkpoint-2 (its trainer_state.json is not whole). Checkpoint-1 is taken instead"
    )


def test_transformers_writes_over_a_torn_one_without_its_mark(tmp_path: Path) -> None:
    """A loss in the middle of that leaves none that looks whole."""
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "trainer_state.json").write_text("{}")
    callback = transformers.CheckpointAtRestart(signal="SIGUSR2")
    state = SimpleNamespace(global_step=5, is_world_process_zero=True)
    callback.on_step_end(SimpleNamespace(output_dir=tmp_path), state, SimpleNamespace(should_save=False))
    assert newest_checkpoint(tmp_path)
    callback.on_step_end(SimpleNamespace(output_dir=tmp_path), state, SimpleNamespace(should_save=True))
    assert newest_checkpoint(tmp_path) is None
