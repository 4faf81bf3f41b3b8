"""What of ``standing_still.py`` only a script for torch can do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


class _Side:
    """Collectives beside those of the training. Those of torch.distributed are in a group of their own in each world,
    since c10d pairs collectives of one group by their order.
    """

    _world: Any = None
    _group: Any = None

    def enter(self) -> None:
        """A collective, called at each step."""
        if not _by_horovod() and self._world is not (world := dist.distributed_c10d._get_default_store()):
            self._world, self._group = world, dist.new_group()

    def maximum(self, value: float) -> float:
        """A collective."""
        number = torch.tensor([float(value)])
        if _by_horovod():
            import horovod.torch as hvd

            return float(hvd.allreduce(number, op=hvd.Max, name="side"))
        dist.all_reduce(number, dist.ReduceOp.MAX, self._group)
        return float(number)


def _by_horovod() -> bool:
    return "engines.horovod" in os.environ["ELASTIC_RUNTIME_WORLD"]


SIDE = _Side()


class _Hangs(torch.utils.data.Dataset[int]):
    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 4:
            self._act()
        return index


def load(act: Callable[[], None]) -> None:
    """By a worker process, which does this half way."""
    for _ in torch.utils.data.DataLoader(_Hangs(act), batch_size=1, num_workers=1):
        pass
