"""A training of ten steps."""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from elastic_runtime.torch import DurableState, GlobalBatches, elastic, report

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(200, 2)
data = TensorDataset(x, x.sum(1, keepdim=True))
state = DurableState(model=model, optimizer=optimizer)
batches = GlobalBatches(data, size=20, seed=0, state=state, epochs=1)


@elastic.run
def train(state):
    parallel = DistributedDataParallel(model)
    for batch in batches:
        a, b = batch.data
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(parallel(a), b)
        (loss * batch.weight).backward()
        optimizer.step()
        print("step", batch.step, flush=True)
        report(batch.step, loss=loss.item())
        state.commit()


train(state)
