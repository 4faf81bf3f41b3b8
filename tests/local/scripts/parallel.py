"""The training of ``doubles.py`` under torch.distributed, with DistributedDataParallel.

``LEARNING_RATE`` is another one: with its own the weights grow without bounds after a thousand steps, and sums of what
is so large are not exact.
"""

import os
import time

import torch
import torch.distributed as dist
from exact_sums import BATCH, build, commit, dataset, gradient
from pace import Pace
from parallel_gradients import Given, total
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.torch import DurableState, GlobalBatches, elastic


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ.get("LEARNING_RATE", "0.01")), momentum=0.9)
    state = DurableState(model=model, optimizer=optimizer)
    data = dataset()
    batches = GlobalBatches(data, size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @elastic.run(in_place=bool(os.environ.get("IN_PLACE")))
    @pace.watched
    def train(state: DurableState) -> None:
        parallel = DistributedDataParallel(Given(model))
        parallel.register_comm_hook(None, total)
        pace.hold(state)
        for batch in batches:
            optimizer.zero_grad()
            parallel(gradient(model, data, batch.indices)).backward()
            optimizer.step()
            pace.note(step=batch.step, rank=dist.get_rank(), size=dist.get_world_size(), time=time.monotonic())
            commit(state, batch, pace.commit_every)
            pace.hold(state)

    train(state)
    pace.note(done=state.step, weights=[float(w) for p in model.parameters() for w in p.detach().flatten()])


main()
