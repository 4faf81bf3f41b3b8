"""Training whose weights are the same to the last bit in worlds of any size, for comparisons after any disturbance.

In double precision; each sample's gradient is computed on its own and rounded to a multiple of :data:`GRAIN`, so that
sums of them are exact in whatever order, and on however many ranks, they are added up.
"""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch
from pace import Pace
from torch.nn.functional import mse_loss

from elastic_runtime.torch import Batch, DurableState, GlobalBatches, report
from elastic_runtime.torch.batches.plan import Indices

SAMPLES, BATCH = 50, 8  # 7 steps an epoch; the last has 2 samples, so that shares are uneven, or empty
GRAIN = 2.0**-24


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
    state = DurableState(model=model, optimizer=optimizer)
    data = dataset()
    batches = GlobalBatches(data, size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @hvd.elastic.run
    def train(state: DurableState) -> None:
        pace.hold(state)
        for batch in batches:
            optimizer.zero_grad()
            give_gradient(model, gradient(model, data, batch.indices))
            optimizer.step()
            pace.note(step=batch.step, rank=hvd.rank(), size=hvd.size(), time=time.monotonic())
            commit(state, batch, pace.commit_every)
            pace.hold(state)

    train(state)
    pace.note(done=state.step, weights=[float(w) for p in model.parameters() for w in p.detach().flatten()])


def dataset() -> torch.utils.data.TensorDataset:
    made = torch.Generator().manual_seed(3)
    features = torch.randn(SAMPLES, 8, generator=made)
    return torch.utils.data.TensorDataset(features, features[:, :1] * features[:, 1:2] + features[:, 2:3])


def gradient(model: torch.nn.Module, data: torch.utils.data.TensorDataset, indices: Indices) -> list[torch.Tensor]:
    """The exact sum over these samples, one tensor a parameter."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for index in indices:
        features, target = data[int(index)]
        of_sample = torch.autograd.grad(mse_loss(model(features), target), parameters)
        total = [so_far + torch.round(part / GRAIN) * GRAIN for so_far, part in zip(total, of_sample, strict=True)]
    return total


def give_gradient(model: torch.nn.Module, gradients: list[torch.Tensor]) -> None:
    """By a backward pass, since that is where Horovod's optimizer begins to sum over ranks."""
    pairs = zip(model.parameters(), gradients, strict=True)
    torch.stack([(parameter * wanted).sum() for parameter, wanted in pairs]).sum().backward()


def commit(state: DurableState, batch: Batch, every: int) -> None:
    if batch.step % every == 0:
        state.commit()
        report(epoch=float(batch.epoch))


main()
