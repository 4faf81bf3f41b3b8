"""What ``exact.py`` needs of the engine that its ranks are started by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

Build = Callable[[], tuple[Any, torch.optim.Optimizer]]


class Kit(Protocol):
    """Of one engine; making it makes this process a rank."""

    def state(self, build: Build, **attributes: Any) -> Any:
        """Of the model and the optimizer that this makes, to step with."""

    def parallel(self, state: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """The model to call; made in each world."""

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """Through all worlds."""

    def mean(self, loss: torch.Tensor) -> float:
        """Over all ranks."""

    def weights(self, state: Any) -> list[float]:
        """All of the model; called by all ranks."""

    def places(self) -> dict[str, int]:
        """Where this rank stands."""


def keep(model: torch.nn.Module, optimizer: Any, attributes: dict[str, Any]) -> Any:
    from elastic_runtime.torch import DurableState

    return DurableState(model=model, optimizer=optimizer, **attributes)


def listed(tensors: Iterable[torch.Tensor]) -> list[float]:
    return [float(weight) for each in tensors for weight in each.detach().flatten()]


class Horovod:
    """Elastic Horovod."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()

    def state(self, build: Build, **attributes: Any) -> Any:
        model, optimizer = build()
        optimizer = self._hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        return keep(model, optimizer, attributes)

    def parallel(self, state: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return state.model

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        return self._hvd.elastic.run(function)

    def mean(self, loss: torch.Tensor) -> float:
        return float(self._hvd.allreduce(loss, name="loss"))

    def weights(self, state: Any) -> list[float]:
        return listed(state.model.parameters())

    def places(self) -> dict[str, int]:
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        return {name: getattr(self._hvd, name)() for name in names}


class Distributed:
    """torch.distributed; ``IN_PLACE`` says whether planned changes leave the training function."""

    def __init__(self) -> None:
        from elastic_runtime.torch import elastic

        self._elastic = elastic
        elastic.init()

    def state(self, build: Build, **attributes: Any) -> Any:
        return keep(*build(), attributes)

    def parallel(self, state: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return torch.nn.parallel.DistributedDataParallel(state.model)

    def run(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        return self._elastic.run(in_place=bool(os.environ.get("IN_PLACE")))(function)

    def mean(self, loss: torch.Tensor) -> float:
        total = loss.clone()
        torch.distributed.all_reduce(total)
        return float(total) / torch.distributed.get_world_size()

    def weights(self, state: Any) -> list[float]:
        return listed(state.model.parameters())

    def places(self) -> dict[str, int]:
        return {"rank": torch.distributed.get_rank(), "size": torch.distributed.get_world_size()}


class Sharded(Distributed):
    """The same, and each rank has a part of the model, and of the optimizer's state."""

    def state(self, build: Build, **attributes: Any) -> Any:
        from torch.distributed.fsdp import fully_shard

        from elastic_runtime.torch import ShardedState

        def sharded() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
            model, optimizer = build()
            for layer in model:
                if list(layer.parameters()):
                    fully_shard(layer)
            fully_shard(model)
            return model, type(optimizer)(model.parameters(), **optimizer.defaults)

        return ShardedState(sharded, **attributes)

    def parallel(self, state: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(features: torch.Tensor) -> torch.Tensor:
            return state.model(features)  # Another one in each world, in which the loop may go on.

        return forward

    def weights(self, state: Any) -> list[float]:
        return listed(each.cpu().full_tensor() for each in state.model.parameters())  # As in ``rich_state.whole``.


def kit() -> Kit:
    """Of the engine that the agent has named; ``SHARDED`` says whether a rank has all of the model."""
    if "engines.torch" not in os.environ["ELASTIC_RUNTIME_WORLD"]:
        return Horovod()
    return Sharded() if os.environ.get("SHARDED") else Distributed()
