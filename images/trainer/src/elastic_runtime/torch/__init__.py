"""Helpers for training scripts: two lines more give durable checkpoints and exact batches.

::

    from elastic_runtime.torch import DurableState, GlobalBatches

    state = DurableState(model=model, optimizer=optimizer)
    for batch in GlobalBatches(dataset, size=256, seed=0, state=state): ...

The names are imported on first use, so that the parts of this package that need no engine (reading a checkpoint, the
order of the samples) can be used where there is none. In a rank that an agent has started cold, importing this package
also does what the run's engine does before a script that is started warm (for Horovod, it puts right what is wrong with
it: :mod:`elastic_runtime.engines.horovod.rank`); so import it before ``hvd.init()``.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_runtime.script.stacks import dump_on_signal
from elastic_runtime.world import WORLD, current_world

if TYPE_CHECKING:
    from elastic_runtime.torch import elastic
    from elastic_runtime.torch.durable import DurableState, load_checkpoint
    from elastic_runtime.torch.global_batches import GlobalBatches
    from elastic_runtime.torch.micro_batches import MicroBatches
    from elastic_runtime.torch.sharded_state import ShardedState
    from elastic_runtime.torch.world_scaling import WorldScaling
    from elastic_runtime.torch.wrapping import make_durable
    from elastic_runtime.training.batches.position import Batch
    from elastic_runtime.training.reporting import report

__all__ = [
    "Batch",
    "DurableState",
    "GlobalBatches",
    "MicroBatches",
    "ShardedState",
    "WorldScaling",
    "elastic",
    "load_checkpoint",
    "make_durable",
    "report",
]

_MODULES = {
    "Batch": "elastic_runtime.training.batches.position",
    "DurableState": "elastic_runtime.torch.durable",
    "GlobalBatches": "elastic_runtime.torch.global_batches",
    "MicroBatches": "elastic_runtime.torch.micro_batches",
    "ShardedState": "elastic_runtime.torch.sharded_state",
    "WorldScaling": "elastic_runtime.torch.world_scaling",
    "make_durable": "elastic_runtime.torch.wrapping",
    "load_checkpoint": "elastic_runtime.torch.durable",
    "report": "elastic_runtime.training.reporting",
}


def __getattr__(name: str) -> Any:
    if name == "elastic":
        return import_module("elastic_runtime.torch.elastic")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


if WORLD in os.environ:
    dump_on_signal()
    current_world().prepare()
