"""TensorFlow's part of Horovod in a rank. The table is in the package's docstring."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.elastic as elastic
import horovod.tensorflow.mpi_ops as mpi_ops
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from elastic_runtime.engines.horovod.frameworks import Framework, complete, when_imported
from elastic_runtime.script.unjoined import ENOUGH, stepped

_LOST = (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What TensorFlow makes of the status of Horovod's operations when a rank is lost; the last one of those beside it."""
_KERAS = ("horovod.tensorflow.keras", "horovod.keras")
"""Modules that a script may import, or not, with copies of what is replaced; each has a module ``elastic``."""


class TensorFlowFramework(Framework):
    """Horovod's operations for TensorFlow."""

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

        broadcast = hvd.broadcast_variables

        def broadcast_variables(*args: Any, **kwargs: Any) -> Any:
            """Scripts begin with it, after a first step; a state of Horovod's calls another name of the function."""
            trained(ENOUGH)
            return broadcast(*args, **kwargs)

        hvd.broadcast_variables = broadcast_variables
        callbacks = tf.keras.callbacks.CallbackList
        ended = callbacks.on_train_batch_end

        def on_train_batch_end(self: Any, *args: Any, **kwargs: Any) -> None:
            ended(self, *args, **kwargs)
            stepped()
            trained(1)

        callbacks.on_train_batch_end = on_train_batch_end

        def adapt_keras(name: str) -> None:
            sys.modules[name].init = init  # type: ignore[attr-defined]
            sys.modules[f"{name}.elastic"].run = run  # type: ignore[attr-defined]

        for name in _KERAS:
            when_imported(name, lambda name=name: adapt_keras(name))  # type: ignore[misc]

    def is_loss(self, error: BaseException) -> bool:
        """Upstream compares the names of three operations, and takes all other errors for the end of the training.

        Here the type says it, and that the operation is one of Horovod's, whichever.
        """
        return isinstance(error, _LOST) and "Horovod" in str(error)

    @override
    def barrier(self) -> None:
        """Reduce a number, because Horovod has no barrier for TensorFlow."""
        self.maximum([0.0])

    @override
    def maximum(self, numbers: Sequence[float]) -> list[float]:
        local = tf.constant(numbers, dtype=tf.float64)
        agreed: list[float] = hvd.allreduce(local, op=hvd.Max, name="elastic_runtime.maximum").numpy().tolist()
        return agreed

    @override
    def broadcast(self, tensors: Sequence[NDArray[Any]]) -> None:
        """Broadcast arrays of numpy."""
        for index, array in enumerate(tensors):
            if array.size:
                data = array.reshape(-1).view(np.uint8)
                received = hvd.broadcast(tf.constant(data), root_rank=0, name=f"elastic_runtime.{index}")
                if mpi_ops.rank() != 0:
                    data[:] = received.numpy()

    def handler(self, value: object) -> None:  # noqa: ARG002
        """Horovod has no registry of handlers for TensorFlow."""
        return


FRAMEWORK = complete(__name__, TensorFlowFramework())
