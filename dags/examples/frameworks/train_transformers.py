"""Train a small Llama with Transformers' Trainer, restarted where it was at each change of the workers.

``train_transformers.py --folder FOLDER``. Of the runtime it has one callback, where it resumes, and the report.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from elastic_runtime.torch import report
from elastic_runtime.torch.transformers import CheckpointAtRestart, newest_checkpoint

WORDS, LENGTH = 32, 8
"""Different words; words of a text."""


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Words that follow one another as numbers do."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.arange(index, index + LENGTH) % WORDS
        return {"input_ids": words, "labels": words}


class Reports(TrainerCallback):
    """Each step, in the status of the run; losses, where the trainer logs them."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # Transformers' names
        """Report the step."""
        report(state.global_step, of=state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002  # the same
        """Report the loss."""
        if "loss" in (logs or {}):
            report(state.global_step, loss=float(logs["loss"]))


def main() -> None:
    """One rank, in one world."""
    options = parse_arguments()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=options.folder, max_steps=options.steps, per_device_train_batch_size=4,
        save_strategy="steps" if options.save_every else "no", save_steps=options.save_every or 500,
        logging_steps=10, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    callbacks = [Reports(), CheckpointAtRestart()]
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Texts(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=newest_checkpoint(options.folder))


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training with Transformers.")
    parser.add_argument("--folder", required=True, help="of checkpoints, which every worker sees")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--save-every", type=int, help="steps between checkpoints for what nobody announces")
    return parser.parse_args()


if __name__ == "__main__":
    main()
