"""DistributedDataParallel over gradients that are given, summed exactly: for ``exact_sums.py``."""

from typing import Any

import torch
import torch.distributed as dist


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
