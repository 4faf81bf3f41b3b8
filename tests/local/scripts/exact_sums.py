"""A task whose gradients are summed exactly, so that weights are the same to the last bit in worlds of any size.

In double precision; each sample's gradient is computed on its own and rounded to a multiple of :data:`GRAIN`, so that
sums of them are exact in whatever order, and on however many ranks, they are added up. ``DEVICE`` is where it trains
(``cuda``); the weights of two devices differ.
"""

from __future__ import annotations

import os

import torch
from torch.nn.functional import mse_loss

from elastic_runtime.torch import Batch, DurableState, report
from elastic_runtime.training.batches.plan import Indices

SAMPLES, BATCH = 50, 8  # 7 steps an epoch; the last has 2 samples, so that shares are uneven, or empty
GRAIN = 2.0**-24
DEVICE = torch.device(os.environ.get("DEVICE", "cpu"))


def build() -> torch.nn.Module:
    """The same in every process."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(DEVICE)


def dataset() -> torch.utils.data.TensorDataset:
    made = torch.Generator().manual_seed(3)
    features = torch.randn(SAMPLES, 8, generator=made)
    targets = features[:, :1] * features[:, 1:2] + features[:, 2:3]
    return torch.utils.data.TensorDataset(*(each.to(DEVICE) for each in (features, targets)))


def gradient(model: torch.nn.Module, data: torch.utils.data.TensorDataset, indices: Indices) -> list[torch.Tensor]:
    """The exact sum over these samples, one tensor a parameter."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for index in indices:
        features, target = data[int(index)]
        of_sample = torch.autograd.grad(mse_loss(model(features), target), parameters)
        total = [so_far + torch.round(part / GRAIN) * GRAIN for so_far, part in zip(total, of_sample, strict=True)]
    return total


def commit(state: DurableState, batch: Batch, every: int) -> None:
    if batch.step % every == 0:
        state.commit()
        report(epoch=float(batch.epoch))
