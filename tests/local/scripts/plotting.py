"""A durable training whose rank 0 writes a line for each step into its folder of outputs."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from pace import Pace
from torch.utils.data import TensorDataset

from elastic_runtime import outputs
from elastic_runtime.torch import DurableState, GlobalBatches


def main() -> None:
    pace = Pace.from_environment()
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = DurableState(model=model, optimizer=optimizer)
    batches = GlobalBatches(TensorDataset(torch.randn(40, 2)), size=10, seed=0, state=state, epochs=pace.epochs)
    folder = outputs()

    @hvd.elastic.run
    def train(state: DurableState) -> None:
        pace.hold(state)
        for batch in batches:
            optimizer.zero_grad()
            (model(batch.data[0]).pow(2).mean() * batch.weight).backward()
            optimizer.step()
            with (folder / "log.csv").open("a") as lines:
                lines.write(f"{batch.step}\n")
            state.commit()
            pace.hold(state)

    train(state)
    (folder / "plots").mkdir(exist_ok=True)
    (folder / "plots" / "end.txt").write_text(f"rank {hvd.rank()}")


main()
