"""Handlers of Horovod's own states for torch, by ``state_dict`` as in ours.

Corrects what is wrong with Horovod 0.28.1's own handlers:

* ``broadcast_optimizer_state`` has a rank whose optimizer has no state yet take a step with zero gradients. With weight
  decay that moves its parameters, after the model was broadcast: the newcomer differs from then on. Here the
  ``state_dict`` of rank 0's optimizer is broadcast and loaded.
* Restoring an optimizer makes its state share memory with the saved one, so that the next steps alter the saved one.
* An optimizer's state is converted to its parameters' type when it is loaded (:mod:`elastic_runtime.torch.optimizers`).
* A learning-rate scheduler has no handler, is pickled with a copy of its optimizer, and from then on sets the rate of
  that copy (horovod/horovod#1281).
"""

from __future__ import annotations

from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.family import HasState
from elastic_runtime.training.state import handlers


class StateDictHandler(handlers.StateDictHandler):
    """Keeps anything with a ``state_dict``."""

    def __init__(self, value: HasState) -> None:
        super().__init__(TORCH, value)
