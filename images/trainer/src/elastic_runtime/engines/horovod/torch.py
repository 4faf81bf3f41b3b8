"""torch's part of Horovod in a rank. The table is in the package's docstring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
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
from elastic_runtime.script.standing import ledger
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
        reset: Callable[[], bool],
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
        register_optimizer_step_post_hook(lambda optimizer, *_: ledger().counts.stepped(optimizer))
        _count_collectives()
        elastic_state.TorchState.on_train_again = _forget_gradients
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
        return cast(list[float], hvd.allreduce(local, op=hvd.Max, name=f"{_OURS}maximum").tolist())

    @override
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        # As bytes: Horovod has no broadcast for some types (bfloat16, complex).
        handles = [
            hvd.broadcast_async_(tensor.reshape(-1).view(torch.uint8), root_rank=0, name=f"{_OURS}{index}")
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


def _forget_gradients(state: elastic_state.TorchState) -> None:
    """Of its model and optimizer: see :func:`~elastic_runtime.torch.gradients.forget_gradients`."""
    from elastic_runtime.torch.gradients import forget_gradients

    forget_gradients([handler.value for handler in state._handlers.values()])


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


_OURS = "elastic_runtime."
"""Names of the collectives of a commit, and of a sync, begin so."""
_COUNTED = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


def _count_collectives() -> None:
    """Of all ranks, but for ours. Horovod pairs them by name, so that their order may differ, and is not told."""
    counts = ledger().counts
    counts.total = ledger().collectives = lambda: counts.begun
    for name in (*_COUNTED, *(f"grouped_{each}" for each in _COUNTED)):
        if (begin := getattr(mpi_ops, f"_{name}_async", None)) is not None:
            setattr(mpi_ops, f"_{name}_async", _counted(name, begin))
    join = mpi_ops.join

    @wraps(join)
    def joins(*args: Any, **kwargs: Any) -> Any:
        counts.may_differ()
        return join(*args, **kwargs)

    for module in (mpi_ops, hvd):
        module.join = joins


def _counted(name: str, begin: Callable[..., Any]) -> Callable[..., Any]:
    begins, parameters = ledger().counts.begins, list(signature(begin).parameters)[1:]
    process_set, its_name = parameters.index("process_set"), parameters.index("name")

    @wraps(begin)
    def counted(tensors: Any, *args: Any) -> Any:
        if args[process_set].process_set_id == 0 and not str(args[its_name]).startswith(_OURS):
            first = tensors[0] if isinstance(tensors, list | tuple) else tensors
            begins("", name, first.dtype, first.numel())
        return begin(tensors, *args)

    return counted


FRAMEWORK = complete(__name__, TorchFramework())
