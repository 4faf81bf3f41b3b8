"""A training as one writes it with Accelerate; of this package it has where it resumes, and a call after each step."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from steering import FOLDER, SAVE_EVERY, STEPS, done

from elastic_runtime.torch.accelerate import CheckpointAtRestart

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=8)  # an epoch is two or three steps
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
checkpoint = CheckpointAtRestart(accelerator, FOLDER / "checkpoints", save_every=SAVE_EVERY)
step = checkpoint.resume()
for batch in checkpoint.batches(loader, epochs=STEPS):
    if step == STEPS:
        break
    optimizer.zero_grad()
    accelerator.backward((model(batch) - batch.sum(1, keepdim=True)).square().mean())
    optimizer.step()
    step += 1
    done(step)
    checkpoint.after(step)
accelerator.end_training()
