"""An elastic state of torch's modules and tensors that outlives the fleet."""

from __future__ import annotations

from typing import Any

from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.checkpointing import parts
from elastic_runtime.training.state import durable


class DurableState(durable.DurableState):
    """Elastic state with durable checkpoints; use it where a script uses ``hvd.elastic.TorchState``.

    ``model`` is a module, ``optimizer`` an optimizer (``hvd.DistributedOptimizer`` too), both kept by their
    ``state_dict``. All else stands in :class:`~elastic_runtime.training.state.durable.DurableState`.
    """

    family = TORCH


def load_checkpoint(uri: str) -> dict[str, Any]:
    """What a :class:`DurableState` held, to evaluate or export it.

    ::

        model.load_state_dict(load_checkpoint(result["checkpoint"]["uri"])["model"])

    Args:
        uri: of the checkpoint, as a result gives it.

    Returns:
        State dicts (``model``, ``optimizer`` …) and plain attributes (``step`` …) by name, tensors in host memory.

    Raises:
        InvalidSettings: it is not the URI of a checkpoint.
        InvalidDocument: there is none, or it is torn or altered, or TensorFlow's.
        StoreUnavailable: the store does not answer.
    """
    return parts.load_checkpoint(TORCH, uri)
