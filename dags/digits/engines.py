"""What makes the ranks of the training a world: Elastic Horovod, or torch.distributed. One script for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from typing_extensions import override

from elastic_runtime.torch import DurableState


class Engine(Protocol):
    """Of one rank; making it enters the world."""

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """The one to step with."""

    def parallel(self, model: nn.Module) -> nn.Module:
        """The one to call; made in each world."""

    def run(self, function: Callable[[DurableState], None]) -> Callable[[DurableState], None]:
        """The training function, made to go through all worlds."""

    def place(self) -> tuple[int, int]:
        """Rank and world size, as they are now."""

    def any(self, mine: bool) -> bool:
        """Whether any rank says so; a collective."""


class Horovod(Engine):
    """Runs under plain ``horovodrun`` too."""

    def __init__(self) -> None:
        import horovod.torch

        self._hvd: Any = horovod.torch
        self._hvd.init()

    @override
    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        return self._hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def parallel(self, model: nn.Module) -> nn.Module:
        """The optimizer exchanges the gradients."""
        return model

    @override
    def run(self, function: Callable[[DurableState], None]) -> Callable[[DurableState], None]:
        wrapped: Callable[[DurableState], None] = self._hvd.elastic.run(function)
        return wrapped

    @override
    def place(self) -> tuple[int, int]:
        return self._hvd.rank(), self._hvd.size()

    @override
    def any(self, mine: bool) -> bool:
        return bool(self._hvd.allreduce(torch.tensor(float(mine)), name="any", op=self._hvd.Sum).item())


class Distributed(Engine):
    """Runs under plain ``torchrun`` too."""

    def __init__(self) -> None:
        from elastic_runtime.torch import elastic

        self._elastic = elastic
        elastic.init()

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:  # noqa: ARG002  # Horovod needs it
        """The wrapper exchanges the gradients."""
        return optimizer

    @override
    def parallel(self, model: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model)

    @override
    def run(self, function: Callable[[DurableState], None]) -> Callable[[DurableState], None]:
        return self._elastic.run(function)

    @override
    def place(self) -> tuple[int, int]:
        return torch.distributed.get_rank(), torch.distributed.get_world_size()

    @override
    def any(self, mine: bool) -> bool:
        said = torch.tensor(float(mine))
        torch.distributed.all_reduce(said)
        return bool(said.item())


ENGINES: dict[str, Callable[[], Engine]] = {"horovod": Horovod, "torch": Distributed}
