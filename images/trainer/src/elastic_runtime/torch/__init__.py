"""Helpers for training scripts: two lines more give durable checkpoints and exact batches.

::

    from elastic_runtime.torch import DurableState, GlobalBatches

    state = DurableState(model=model, optimizer=optimizer)
    for batch in GlobalBatches(dataset, size=256, seed=0, state=state): ...

The names are imported on first use, so that the parts of this package that need no engine (reading a checkpoint, the
order of the samples) can be used where there is none. In a rank that an agent has started cold, importing this package
also does what the run's engine does before a script that is started warm (for Horovod, it puts right what is wrong with
it: :mod:`elastic_runtime.engines.horovod.rank`); so import it before ``hvd.init()``.

With a torch older than 2.10, importing it raises :class:`~elastic_runtime.errors.InvalidSettings` (see ``version``).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_runtime.torch.version import check_torch
from elastic_runtime.world import WORLD, current_world

if TYPE_CHECKING:
    from elastic_runtime.torch.batches.global_batches import Batch, GlobalBatches
    from elastic_runtime.torch.checkpointing.parts import load_checkpoint
    from elastic_runtime.torch.reporting import report
    from elastic_runtime.torch.scaling.world_scaling import WorldScaling
    from elastic_runtime.torch.state.durable import DurableState

__all__ = ["Batch", "DurableState", "GlobalBatches", "WorldScaling", "load_checkpoint", "report"]

_MODULES = {
    "Batch": "batches.global_batches",
    "DurableState": "state.durable",
    "GlobalBatches": "batches.global_batches",
    "WorldScaling": "scaling.world_scaling",
    "load_checkpoint": "checkpointing.parts",
    "report": "reporting",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


check_torch()
if WORLD in os.environ:
    current_world().prepare()
