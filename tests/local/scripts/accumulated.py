"""Training with MicroBatches, and with a BatchNorm, whose gradients depend on who shares a micro-batch."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from pace import Pace
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from elastic_runtime.torch import DurableState, MicroBatches

SAMPLES, SIZE, COUNT = 100, 4, 4  # 7 steps an epoch; the last has one micro-batch, so that ranks stand in for others


def main() -> None:
    pace = Pace.from_environment()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # See exact.py.
    hvd.init()
    torch.manual_seed(0)
    features = torch.randn(SAMPLES, 8)
    data = TensorDataset(features, features[:, :1] * features[:, 1:2] + features[:, 2:3])
    norm = torch.nn.BatchNorm1d(16, track_running_stats=False)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), norm, torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = DurableState(model=model, optimizer=optimizer)
    steps = MicroBatches(data, SIZE, COUNT, seed=7, state=state, optimizer=optimizer, epochs=pace.epochs)

    @hvd.elastic.run
    def train(state: DurableState) -> None:
        pace.note(joined=state.step, rank=hvd.rank(), size=hvd.size())
        pace.hold(state)
        for step in steps:
            optimizer.zero_grad()
            own, samples = torch.zeros(()), []
            for batch in step:
                inputs, targets = batch.data
                loss = mse_loss(model(inputs), targets) * batch.weight
                loss.backward()
                own += loss.detach()
                samples += batch.indices.tolist()
            optimizer.step()
            total = float(hvd.allreduce(own, name="loss"))
            pace.note(
                step=step.step, epoch=step.epoch, rank=hvd.rank(), size=hvd.size(), samples=samples, loss=total
            )  # fmt: skip
            state.commit()
            pace.hold(state)

    train(state)
    pace.note(
        done=state.step, rank=hvd.rank(), weights=[float(w) for p in model.parameters() for w in p.detach().flatten()]
    )


main()
