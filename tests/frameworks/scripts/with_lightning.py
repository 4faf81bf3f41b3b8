"""A training as one writes it with Lightning; what it has of this package is one callback."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from steering import FOLDER, SAVE_EVERY, STEPS, done

from elastic_runtime.torch.lightning import CheckpointAtRestart


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Steps(Callback):
    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        done(trainer.global_step)


warnings.filterwarnings("ignore")
torch.manual_seed(0)
data = torch.utils.data.DataLoader(torch.randn(4000, 4), batch_size=8)
checkpoint = CheckpointAtRestart(FOLDER / "checkpoints", save_every=SAVE_EVERY)
size, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
trainer = Trainer(
    accelerator="cpu", strategy="ddp", devices=here, num_nodes=size // here, max_steps=STEPS,
    callbacks=[Steps(), checkpoint], logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Model(), data, ckpt_path=checkpoint.newest)
