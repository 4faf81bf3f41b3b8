"""Training whose weights are the same to the last bit in worlds of any size, for comparisons after any disturbance."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch
from exact_sums import BATCH, build, commit, dataset, gradient
from pace import Pace

from elastic_runtime.torch import DurableState, GlobalBatches


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    hvd.init()
    model = build()
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


def give_gradient(model: torch.nn.Module, gradients: list[torch.Tensor]) -> None:
    """By a backward pass, since that is where Horovod's optimizer begins to sum over ranks."""
    pairs = zip(model.parameters(), gradients, strict=True)
    torch.stack([(parameter * wanted).sum() for parameter, wanted in pairs]).sum().backward()


main()
