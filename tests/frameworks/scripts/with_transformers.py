"""A training as one writes it with Transformers' Trainer; what it has of this package is one callback."""

from __future__ import annotations

from typing import Any

import torch
from steering import FOLDER, STEPS, done
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from elastic_runtime.torch.transformers import CheckpointAtRestart, newest_checkpoint


class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.arange(index, index + 8) % 32
        return {"input_ids": words, "labels": words}


class Steps(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        done(state.global_step)


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=16,
)  # fmt: skip
output = FOLDER / "checkpoints"
arguments = TrainingArguments(
    output_dir=str(output), max_steps=STEPS, per_device_train_batch_size=4, use_cpu=True, save_strategy="no",
    report_to=[], disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    LlamaForCausalLM(config), arguments, train_dataset=Words(), callbacks=[Steps(), CheckpointAtRestart()]
)
trainer.train(resume_from_checkpoint=newest_checkpoint(output))
