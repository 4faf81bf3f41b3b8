"""Train with Lightning, restarted where it was at each change of the workers: ``train_lightning.py --folder FOLDER``.

Of the runtime it has one callback, and the report.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from elastic_runtime.torch import report
from elastic_runtime.torch.lightning import CheckpointAtRestart


class Model(LightningModule):
    """Learns the sum of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        """Return the loss."""
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Reports(Callback):
    """Each step's loss, in the status of the run."""

    def on_train_batch_end(self, trainer: Trainer, _module: LightningModule, outputs: Any, *_: Any) -> None:
        """Report it."""
        report(trainer.global_step, of=trainer.max_steps, loss=outputs["loss"].detach())


def main() -> None:
    """One rank, in one world."""
    options = parse_arguments()
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(4000, 4), batch_size=8)
    checkpoint = CheckpointAtRestart(options.folder, save_every=options.save_every)
    size, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = Trainer(
        accelerator="auto", strategy="ddp", devices=here, num_nodes=size // here, max_steps=options.steps,
        callbacks=[Reports(), checkpoint], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), data, ckpt_path=checkpoint.newest)


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training with Lightning.")
    parser.add_argument("--folder", required=True, help="of checkpoints, which every worker sees")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    parser.add_argument("--save-every", type=int, help="steps between checkpoints for what nobody announces")
    return parser.parse_args()


if __name__ == "__main__":
    main()
