"""An elastic state of TensorFlow's variables that outlives the fleet."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from typing_extensions import override

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.tensorflow.family import TENSORFLOW
from elastic_runtime.tensorflow.states import build, check_optimizer
from elastic_runtime.training.state import durable


class DurableState(durable.DurableState):
    """Elastic state with durable checkpoints; use it where a script uses ``hvd.elastic.TensorFlowKerasState``.

    What it does, and when, is the same as in ``elastic_runtime.torch``:
    :class:`~elastic_runtime.training.state.durable.DurableState`.

    Args:
        model: a ``tf.keras.Model`` that has its variables; kept by its weights.
        optimizer: of Keras, ``hvd.DistributedOptimizer`` too; None: the model's, if it is compiled. Kept by its
            variables and its learning rate; those that its first step would make are made here.
        **arguments: ``checkpoint``, and what else is to be kept: ``tf.Variable``, lists, tuples and dicts of them,
            other models and optimizers that have their variables, anything with ``state_dict`` and
            ``load_state_dict``, numpy's arrays, and plain values.

    Raises:
        InvalidSettings: an attribute cannot be kept, the store is unknown, or the checkpoint does not fit the model.
        OwnershipLost: the run has a newer owner.
        StoreUnavailable: the store does not answer.
    """

    family = TENSORFLOW

    def __init__(self, model: Any = None, optimizer: Any = None, **arguments: Any) -> None:
        if optimizer is None:
            optimizer = getattr(model, "optimizer", None)
        build(model, optimizer)
        super().__init__(model, optimizer, **arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            check_optimizer(f"{type(self).__name__}.{name}", value)
        super().__setattr__(name, value)

    @override
    def commit(self) -> None:
        """Commit, as the class describes.

        Raises:
            InvalidSettings: ``hvd.DistributedOptimizer`` has added up some of the gradients of a step: each rank has
                its own, and a new one would count passes from 0.
        """
        for name, handler in self._values.handlers.items():
            passes = getattr(getattr(handler.value, "_agg_helper", None), "counter", None)
            if isinstance(passes, tf.Variable) and int(passes):
                problem = f"commit() comes before a step has all its backward passes, after {int(passes)}"
                raise InvalidSettings(f"DurableState.{name}", problem, "Commit after each backward_passes_per_step")
        super().commit()

    def commit_in_world(self) -> None:
        """Commit the last step of a training that ends: all ranks stay in their world, and none waits for others."""
        self._commit_last()
