"""So many steps of a tenth of a second."""

from __future__ import annotations

import sys
import time

import horovod.torch as hvd
import torch

from elastic_runtime.torch import DurableState, report


def main(steps: int) -> None:
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    state = DurableState(model=model, optimizer=optimizer)

    @hvd.elastic.run
    def train(state: DurableState) -> None:
        while state.step < steps:
            optimizer.zero_grad()
            loss = model(torch.ones(4, 2)).pow(2).mean()
            loss.backward()
            optimizer.step()
            time.sleep(0.1)
            state.step += 1
            report(step=state.step, loss=loss.item())
            state.commit()

    train(state)


if __name__ == "__main__":
    main(int(sys.argv[1]))
