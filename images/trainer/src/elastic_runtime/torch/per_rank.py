"""Objects that a state must not be given: what they hold is right for one rank, or for one world size, alone.

A state sends rank 0's values to every rank of the next world. That is wrong for the position of a data loader, which
counts the batches of one rank in a world of one size, and for whatever a rank has a part of. Such objects have a
``state_dict`` as any other, so they are recognized by their classes, by name: no library is imported for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from elastic_runtime.errors import InvalidSettings

_BATCHES = (
    "Take GlobalBatches(dataset, size=…, seed=…, state=state) for the batches, whose position is state.step, and keep "
    "this out of the state"
)
_RESTARTS = "Use ElasticTorchOperator(restart=Restart(…)), with checkpoints of the library's own"


@dataclass(frozen=True, slots=True)
class _Rule:
    """Of a class and those derived from it, or of all in a module and below."""

    where: str
    """The class with its module, or a module with a dot at its end."""
    problem: str
    remedy: str
    applies: Callable[[Any], bool] = lambda _: True

    def is_of(self, names: Iterable[str]) -> bool:
        """Whether it is about an object whose classes have these names."""
        return any(name.startswith(self.where) if self.where.endswith(".") else name == self.where for name in names)


def _counts_ranks(scheduler: Any) -> bool:
    return bool(getattr(scheduler, "step_with_optimizer", True)) and not getattr(scheduler, "split_batches", False)


def _accumulates_alone(metric: Any) -> bool:
    metrics = list(metric.values()) if hasattr(metric, "values") else [metric]
    return any(getattr(each, "sync_on_compute", True) for each in metrics) or not metric.state_dict()


_POSITION = "its state is the position of one rank, in a world of one size, and every rank would get rank 0's"
_PART = "its state is the part of one rank, and every rank would get rank 0's"
_METRIC = "what it accumulates is of one rank, and every rank would get rank 0's, or it keeps none of it"
_METRIC_REMEDY = (
    "Keep it out of the state and reset it with each epoch; or update it with values of all ranks, and make it with "
    "sync_on_compute=False and metric.persistent(True)"
)
_RULES = (
    _Rule(
        "accelerate.scheduler.AcceleratedScheduler",
        "it takes as many steps of the schedule at each call as there are ranks, so its rate depends on the world size",
        "Keep the scheduler that was given to accelerator.prepare (prepared.scheduler), and step that one; or use "
        "Accelerator(step_scheduler_with_optimizer=False), or split_batches=True",
        _counts_ranks,
    ),
    _Rule("accelerate.data_loader.", _POSITION, _BATCHES),
    _Rule("torchdata.", _POSITION, _BATCHES),
    _Rule("torch.utils.data.dataloader.DataLoader", _POSITION, _BATCHES),
    _Rule("torch.utils.data.distributed.DistributedSampler", _POSITION, _BATCHES),
    _Rule("torch.utils.data.dataset.IterableDataset", _POSITION, _BATCHES),
    _Rule("datasets.iterable_dataset.IterableDataset", _POSITION, _BATCHES),
    _Rule("lightning.pytorch.loops.", _POSITION, _RESTARTS),
    _Rule("pytorch_lightning.loops.", _POSITION, _RESTARTS),
    _Rule("torchmetrics.metric.Metric", _METRIC, _METRIC_REMEDY, _accumulates_alone),
    _Rule("torchmetrics.collections.MetricCollection", _METRIC, _METRIC_REMEDY, _accumulates_alone),
    _Rule("deepspeed.runtime.", _PART, _RESTARTS, lambda value: hasattr(value, "param_groups")),
    _Rule("deepspeed.runtime.engine.DeepSpeedEngine", _PART, _RESTARTS),
    _Rule("megatron.core.optimizer.distrib_optimizer.DistributedOptimizer", _PART, _RESTARTS),
    _Rule(
        "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer",
        _PART,
        "Use the optimizer that it wraps, or ShardedState with fully_shard",
    ),
    _Rule(
        "torch.distributed.optim.post_localSGD_optimizer.PostLocalSGDOptimizer",
        "the ranks' models differ between two averages, and every rank would get rank 0's",
        "Use the optimizer that it wraps, with DistributedDataParallel",
    ),
    _Rule(
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
        _PART,
        "Use ShardedState with fully_shard",
    ),
)
_SHARDED = frozenset({"torch.distributed.tensor.DTensor", "torch.distributed.tensor._api.DTensor"})


def check_same_on_every_rank(field: str, value: object, *, may_be_sharded: bool = False) -> None:
    """Refuse what a state would give to every rank, and is not the same on every rank or at every world size.

    Args:
        field: of the state, for the message.
        value: anything.
        may_be_sharded: whether the state redistributes sharded tensors.

    Raises:
        InvalidSettings: it is one of those.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return
    names = _classes_of(value)
    for rule in _RULES:
        if rule.is_of(names) and rule.applies(value):
            raise InvalidSettings(field, f"{names[0]}: {rule.problem}", rule.remedy)
    if not may_be_sharded and any(_SHARDED.intersection(_classes_of(tensor)) for tensor in _tensors_of(value)):
        raise InvalidSettings(field, f"its tensors are sharded: {_PART}", "Use ShardedState")


def _classes_of(value: object) -> list[str]:
    return [f"{each.__module__}.{each.__qualname__}" for each in type(value).__mro__]


def _tensors_of(value: object) -> Iterable[object]:
    if isinstance(value, torch.nn.Module):
        return value.parameters()
    if isinstance(value, torch.optim.Optimizer):
        return (each for group in value.param_groups for each in group["params"])
    return (value,)
