"""Helpers for training scripts of TensorFlow and Keras: two lines more give durable checkpoints and exact batches.

::

    from elastic_runtime.tensorflow import DurableState, GlobalBatches

    state = DurableState(model)  # compiled, with hvd.DistributedOptimizer
    batches = GlobalBatches((images, labels), size=256, seed=0, state=state, epochs=10)

    @hvd.elastic.run
    def train(state):
        batches.fit(model)

The names are imported on first use. In a rank that an agent has started cold, importing this package also does what the
run's engine does before a script that is started warm (for Horovod, it puts right what is wrong with it:
:mod:`elastic_runtime.engines.horovod.rank`); so import it before ``hvd.init()``.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elastic_runtime.script.stacks import dump_on_signal
from elastic_runtime.world import WORLD, current_world

if TYPE_CHECKING:
    from elastic_runtime.tensorflow.batches import GlobalBatches
    from elastic_runtime.tensorflow.callback import Elastic
    from elastic_runtime.tensorflow.durable import DurableState
    from elastic_runtime.tensorflow.micro_batches import MicroBatches
    from elastic_runtime.training.batches.position import Batch
    from elastic_runtime.training.reporting import report

__all__ = ["Batch", "DurableState", "Elastic", "GlobalBatches", "MicroBatches", "load_checkpoint", "report"]

_MODULES = {
    "Batch": "elastic_runtime.training.batches.position",
    "DurableState": "elastic_runtime.tensorflow.durable",
    "Elastic": "elastic_runtime.tensorflow.callback",
    "GlobalBatches": "elastic_runtime.tensorflow.batches",
    "MicroBatches": "elastic_runtime.tensorflow.micro_batches",
    "report": "elastic_runtime.training.reporting",
}


def load_checkpoint(uri: str) -> dict[str, Any]:
    """Load what a :class:`DurableState` held, to evaluate or export it.

    ::

        model.set_weights(load_checkpoint(result["checkpoint"]["uri"])["model"])

    Args:
        uri: of the checkpoint, as a result gives it.

    Returns:
        Lists of arrays (``model``, ``optimizer`` …) and plain attributes (``step`` …) by name.

    Raises:
        InvalidSettings: it is not the URI of a checkpoint.
        InvalidDocument: there is none, or it is torn or altered, or torch's.
        StoreUnavailable: the store does not answer.
    """
    from elastic_runtime.tensorflow.family import TENSORFLOW
    from elastic_runtime.training.checkpointing.parts import load_checkpoint

    return load_checkpoint(TENSORFLOW, uri)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


if WORLD in os.environ:
    dump_on_signal()
    current_world().prepare()
