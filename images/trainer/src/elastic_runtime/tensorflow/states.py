"""The state of what is made of ``tf.Variable``: models, optimizers, and variables themselves, as arrays of numpy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.tensorflow.arrays import Array
from elastic_runtime.training.family import HasState


def variables_of(optimizer: Any) -> list[Any]:
    """All that an optimizer keeps from step to step, its learning rate included.

    Keras leaves that out: after it was changed, as a callback does, a newcomer's would be another.
    """
    found = optimizer.variables
    variables = list(found() if callable(found) else found)
    rate = optimizer.learning_rate
    if isinstance(rate, tf.Variable) and not any(rate is each for each in variables):
        variables.append(rate)
    return variables


def build(model: Any, optimizer: Any) -> None:
    """Have all variables there, as they are after the first step.

    Raises:
        InvalidSettings: the model does not know the shape of its input yet.
    """
    if model is not None and not model.built:
        remedy = "Begin it with tf.keras.Input(…), or call model.build(input_shape) first"
        raise InvalidSettings("DurableState.model", "it has no variables yet", remedy)
    if model is None or optimizer is None:
        return
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    else:  # tf.keras.optimizers.legacy
        optimizer._create_all_weights(model.trainable_variables)


class ModelState:
    """Of a ``tf.keras.Model``: the arrays of ``get_weights()``."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> list[Array]:
        """All weights, those that are not trained included."""
        return _read(self._model.weights)

    def load_state_dict(self, state_dict: Sequence[Array]) -> None:
        """Undo :meth:`state_dict`. Raises ValueError when it is of another model."""
        _assign(self._model.weights, state_dict)


class OptimizerState:
    """Of an optimizer of Keras'; ``hvd.DistributedOptimizer`` too."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> list[Array]:
        """See :func:`variables_of`."""
        return _read(variables_of(self._optimizer))

    def load_state_dict(self, state_dict: Sequence[Array]) -> None:
        """Undo :meth:`state_dict`. Raises ValueError when it is of another optimizer."""
        _assign(variables_of(self._optimizer), state_dict)


class Variables:
    """Of a variable, or of lists, tuples and dicts of nothing else."""

    def __init__(self, value: Any) -> None:
        self._variables = tf.nest.flatten(value)

    def state_dict(self) -> list[Array]:
        """In the order of ``tf.nest.flatten``."""
        return _read(self._variables)

    def load_state_dict(self, state_dict: Sequence[Array]) -> None:
        """Undo :meth:`state_dict`. Raises ValueError when it is of others."""
        _assign(self._variables, state_dict)


def state_of(value: object) -> HasState | None:
    """Of an object that a state may be given; None: it is kept by value, if it can be."""
    if isinstance(value, tf.keras.Model):
        return ModelState(value)
    if isinstance(value, tf.keras.optimizers.Optimizer | tf.keras.optimizers.legacy.Optimizer):
        return OptimizerState(value)
    if isinstance(value, tf.Variable | list | tuple | dict):
        leaves = tf.nest.flatten(value)
        if leaves and all(isinstance(leaf, tf.Variable) for leaf in leaves):
            return Variables(value)
    return value if isinstance(value, HasState) else None


def trained_of(value: object) -> list[Array] | None:
    """What all ranks have alike at each commit: a model's trainable weights, or an optimizer's variables."""
    if isinstance(value, tf.keras.Model):
        return _read(value.trainable_weights)
    if isinstance(value, tf.keras.optimizers.Optimizer | tf.keras.optimizers.legacy.Optimizer):
        return _read(variables_of(value))
    return None


def _read(variables: Sequence[Any]) -> list[Array]:
    return [np.asarray(variable.numpy()) for variable in variables]


def _assign(variables: Sequence[Any], arrays: Sequence[Array]) -> None:
    kinds, wanted = (
        [_kind(each.shape, each.dtype) for each in arrays],
        [_kind(each.shape, each.dtype.as_numpy_dtype) for each in variables],
    )
    if kinds != wanted:  # An assignment would convert what has another type.
        raise ValueError(f"it has arrays of the shapes and types {_short(kinds)}, and the variables {_short(wanted)}")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _kind(shape: Sequence[int], dtype: Any) -> str:
    return f"{np.dtype(dtype)}{list(shape)}"


def _short(kinds: Sequence[str]) -> str:
    text = ", ".join(kinds[:20])
    return f"{text} and {len(kinds) - 20} more" if len(kinds) > 20 else text or "nothing"
