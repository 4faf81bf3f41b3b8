"""The training of ``doubles.py`` under torch.distributed, with DistributedDataParallel."""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from exact_sums import BATCH, build, commit, dataset, gradient
from pace import Pace
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.torch import DurableState, GlobalBatches, elastic


class Given(torch.nn.Module):
    """Whose gradients are given: DistributedDataParallel begins to sum over ranks where they come out of a forward."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, wanted: list[torch.Tensor]) -> torch.Tensor:
        pairs = zip(self.inner.parameters(), wanted, strict=True)
        return torch.stack([(parameter * each).sum() for parameter, each in pairs]).sum()


def total(_state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sums, where DistributedDataParallel takes the mean, which is not exact over three ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0])


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    state = DurableState(model=model, optimizer=optimizer)
    data = dataset()
    batches = GlobalBatches(data, size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @elastic.run(in_place=bool(os.environ.get("IN_PLACE")))
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
