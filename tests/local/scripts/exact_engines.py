"""What ``exact.py`` needs of the engine that its ranks are started by."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Kit(Protocol):
    """Of one engine; making it makes this process a rank."""

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Any:
        """The one to step with."""

    def parallel(self, model: torch.nn.Module) -> Any:
        """The one to call; made in each world."""

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """Through all worlds."""

    def mean(self, loss: torch.Tensor) -> float:
        """Over all ranks."""

    def places(self) -> dict[str, int]:
        """Where this rank stands."""


class Horovod:
    """Elastic Horovod."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Any:
        return self._hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def parallel(self, model: torch.nn.Module) -> Any:
        return model

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        return self._hvd.elastic.run(function)

    def mean(self, loss: torch.Tensor) -> float:
        return float(self._hvd.allreduce(loss, name="loss"))

    def places(self) -> dict[str, int]:
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        return {name: getattr(self._hvd, name)() for name in names}


class Distributed:
    """torch.distributed; ``IN_PLACE`` says whether planned changes leave the training function."""

    def __init__(self) -> None:
        from elastic_runtime.torch import elastic

        self._elastic = elastic
        elastic.init()

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Any:
        return optimizer

    def parallel(self, model: torch.nn.Module) -> Any:
        return torch.nn.parallel.DistributedDataParallel(model)

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        return self._elastic.run(in_place=bool(os.environ.get("IN_PLACE")))(function)

    def mean(self, loss: torch.Tensor) -> float:
        total = loss.clone()
        torch.distributed.all_reduce(total)
        return float(total) / torch.distributed.get_world_size()

    def places(self) -> dict[str, int]:
        return {"rank": torch.distributed.get_rank(), "size": torch.distributed.get_world_size()}


def kit() -> Kit:
    """Of the engine that the agent has named."""
    return Distributed() if "engines.torch" in os.environ["ELASTIC_RUNTIME_WORLD"] else Horovod()
