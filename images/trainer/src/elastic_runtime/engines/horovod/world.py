"""The world of a rank, by Horovod's collectives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch.elastic.state import ModelStateHandler, OptimizerStateHandler, get_handler_registry

from elastic_runtime.world import Handler


class HorovodWorld:
    """Implements :class:`~elastic_runtime.world.World`."""

    @property
    def connected(self) -> bool:
        """See :class:`World`."""
        return bool(hvd.is_initialized())

    @property
    def name(self) -> str:
        """See :class:`World`."""
        return os.environ.get("HOROVOD_HOSTNAME", "")

    @property
    def rank(self) -> int:
        """See :class:`World`."""
        return int(hvd.rank())

    @property
    def size(self) -> int:
        """See :class:`World`."""
        return int(hvd.size())

    def prepare(self) -> None:
        """See :class:`World`."""
        from elastic_runtime.engines.horovod import rank

        rank.install()

    def barrier(self) -> None:
        """See :class:`World`."""
        hvd.barrier()

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        """See :class:`World`."""
        local = torch.tensor(numbers, dtype=torch.float64)
        return cast(list[float], hvd.allreduce(local, op=hvd.Max, name="elastic_runtime.maximum").tolist())

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """See :class:`World`."""
        # As bytes: Horovod has no broadcast for some types (bfloat16, complex).
        handles = [
            hvd.broadcast_async_(tensor.reshape(-1).view(torch.uint8), root_rank=0, name=f"elastic_runtime.{index}")
            for index, tensor in enumerate(tensors)
            if tensor.numel()
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def interrupt(self) -> Exception:
        """Always with a sync to follow."""
        return cast(Exception, HostsUpdatedInterrupt(False))

    def handler(self, value: object) -> Handler | None:
        """What a script has put into Horovod's registry is honoured, and Horovod's for its ElasticSampler."""
        # Only here: to import that package in a cold rank is to import this module, and to prepare this world.
        from elastic_runtime.torch.state.handlers import StateDictHandler

        replaced = (ModelStateHandler, OptimizerStateHandler, StateDictHandler)
        for kind, handler in get_handler_registry():
            if isinstance(value, kind) and handler not in replaced:
                return cast(Handler, handler(value))
        return None


WORLD = HorovodWorld()
