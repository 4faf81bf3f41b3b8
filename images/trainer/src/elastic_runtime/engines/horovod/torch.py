"""torch's part of Horovod in a rank. The table is in the package's docstring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import horovod.torch as hvd
import horovod.torch.elastic as elastic
import horovod.torch.elastic.state as elastic_state
import horovod.torch.mpi_ops as mpi_ops
import torch
from horovod.torch.elastic.state import ModelStateHandler, OptimizerStateHandler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from typing_extensions import override

from elastic_runtime.engines.horovod.frameworks import Framework, complete
from elastic_runtime.script.unjoined import stepped
from elastic_runtime.world import Handler


class TorchFramework(Framework):
    """Horovod's operations for torch."""

    calls = mpi_ops
    modules = (mpi_ops, hvd)

    @override
    def adapt(
        self,
        init: Callable[..., None],
        reset: Callable[[], None],
        run: Callable[..., Any],
        trained: Callable[[int], None],
    ) -> None:
        for module in (mpi_ops, hvd, elastic):
            module.init = init
        elastic._reset = reset
        elastic.run = run
        # Only now: to import that package in a cold rank is to have this function called.
        from elastic_runtime.torch.handlers import StateDictHandler

        schedulers = (torch.optim.lr_scheduler.LRScheduler, StateDictHandler)
        optimizers = (torch.optim.Optimizer, StateDictHandler)  # The first that fits is taken.
        register_optimizer_step_post_hook(lambda *_: stepped())
        _count_steps(trained)
        elastic_state.set_handler_registry([optimizers, *elastic_state.get_handler_registry(), schedulers])

    def is_loss(self, error: BaseException) -> bool:  # noqa: ARG002
        """Never: it is Horovod's own error."""
        return False

    @override
    def barrier(self) -> None:
        hvd.barrier()

    @override
    def maximum(self, numbers: Sequence[float]) -> list[float]:
        local = torch.tensor(numbers, dtype=torch.float64)
        return cast(list[float], hvd.allreduce(local, op=hvd.Max, name="elastic_runtime.maximum").tolist())

    @override
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        # As bytes: Horovod has no broadcast for some types (bfloat16, complex).
        handles = [
            hvd.broadcast_async_(tensor.reshape(-1).view(torch.uint8), root_rank=0, name=f"elastic_runtime.{index}")
            for index, tensor in enumerate(tensors)
            if tensor.numel()
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def handler(self, value: object) -> Handler | None:
        """Return a value's handler from Horovod's registry: the script's, or Horovod's for its ElasticSampler."""
        # Only here: to import that package in a cold rank is to import this module, and to prepare this world.
        from elastic_runtime.torch.handlers import StateDictHandler

        replaced = (ModelStateHandler, OptimizerStateHandler, StateDictHandler)
        for kind, handler in elastic_state.get_handler_registry():
            if isinstance(value, kind) and handler not in replaced:
                return cast(Handler, handler(value))
        return None


def _count_steps(trained: Callable[[int], None]) -> None:
    """Call it after each step of an optimizer. Horovod's make theirs inside of a step of the class that they extend."""
    depth = 0

    def begins(*_: object) -> None:
        nonlocal depth
        depth += 1

    def ends(*_: object) -> None:
        nonlocal depth
        depth -= 1
        if not depth:
            trained(1)

    register_optimizer_step_pre_hook(begins)
    register_optimizer_step_post_hook(ends)


FRAMEWORK = complete(__name__, TorchFramework())
