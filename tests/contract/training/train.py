"""A plain Elastic Horovod script: trains until the file that it is given holds a word, ``finish`` or ``break``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, word: Path) -> None:
    while True:
        # All ranks have to leave in the same step: rank 0 reads, and tells the others.
        said = word.read_text() if hvd.rank() == 0 and word.exists() else ""
        said = hvd.broadcast_object(said, root_rank=0)
        if said == "finish":
            return
        if said == "break":
            sys.exit(3)
        state.optimizer.zero_grad()
        state.model(torch.ones(4, 2)).sum().backward()
        state.optimizer.step()
        state.batch += 1
        if state.batch % 20 == 0 and hvd.rank() == 0:
            print(f"batch {state.batch}, {hvd.size()} ranks", flush=True)
        state.commit()
        time.sleep(0.02)


def main() -> None:
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0), Path(sys.argv[1]))
    if hvd.rank() == 0:
        print("the last words", flush=True)


if __name__ == "__main__":
    main()
