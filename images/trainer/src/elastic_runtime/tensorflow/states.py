"""The state of what is made of ``tf.Variable``: models, optimizers, and variables themselves, as arrays of numpy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training.family import HasState, Tree
from elastic_runtime.training.trees import Path

Array = NDArray[Any]


def variables_of(optimizer: Any) -> list[Any]:
    """All that an optimizer keeps from step to step, its learning rate and a dynamic loss scale included.

    Keras leaves these out: after they have changed, a newcomer's would be others.
    """
    found = optimizer.variables
    variables = list(found() if callable(found) else found)
    scale = getattr(optimizer, "_loss_scale", None)
    for more in (optimizer.learning_rate, *(getattr(scale, name, None) for name in ("current_loss_scale", "counter"))):
        if isinstance(more, tf.Variable) and not any(more is each for each in variables):
            variables.append(more)
    return variables


def check_optimizer(field: str, value: Any) -> None:
    """Refuse an optimizer whose state a new rank would not get whole.

    Raises:
        InvalidSettings: its variables are made by its first step; or it has a state that it does not give.
    """
    if not _is_optimizer(value):
        return
    inner = getattr(value, "inner_optimizer", value)
    if isinstance(inner, tf.keras.optimizers.Nadam):
        problem = "Keras' Nadam counts steps, and keeps a product of them, in attributes that are not its variables"
        raise InvalidSettings(field, problem, "Use tf.keras.optimizers.legacy.Nadam, or AdamW")
    legacy = isinstance(inner, tf.keras.optimizers.legacy.Optimizer)
    if not (inner.weights if legacy else hasattr(inner, "_index_dict")):
        call = "_create_all_weights" if legacy else "build"
        problem = "it has no variables yet, and would have them after its first step"
        raise InvalidSettings(field, problem, f"Call optimizer.{call}(model.trainable_variables) first")


def _is_optimizer(value: object) -> bool:
    return isinstance(value, tf.keras.optimizers.Optimizer | tf.keras.optimizers.legacy.Optimizer)


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
    """State of a ``tf.keras.Model``: the arrays of ``get_weights()``, in the order that these have now.

    Where layers of layers are frozen, or not any more, Keras has another order.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._order = model, list(model.weights)

    def state_dict(self) -> list[Array]:
        """All weights, those that are not trained included."""
        return _read(self._weights())

    def load_state_dict(self, state_dict: Sequence[Array]) -> None:
        """Undo :meth:`state_dict`. Raises ValueError when it is of another model."""
        _assign(self._weights(), state_dict)

    def _weights(self) -> list[Any]:
        weights = self._model.weights
        if {*map(id, weights)} != {*map(id, self._order)}:
            raise ValueError("the model has other weights than when it was given to the state")
        return self._order


class OptimizerState:
    """State of a Keras optimizer, ``hvd.DistributedOptimizer`` included."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> list[Array]:
        """Return the variables, as :func:`variables_of` names them."""
        return _read(variables_of(self._optimizer))

    def load_state_dict(self, state_dict: Sequence[Array]) -> None:
        """Undo :meth:`state_dict`. Raises ValueError when it is of another optimizer."""
        _assign(variables_of(self._optimizer), state_dict)


class Variables:
    """State of a variable, or of lists, tuples and dicts of variables only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def state_dict(self) -> Tree:
        """Return the value's tree with each variable read into an array."""
        return _arrays(self._value)

    def load_state_dict(self, state_dict: Tree) -> None:
        """Assign arrays of :meth:`state_dict` to the variables. Raise ValueError if it has other paths."""
        mine, theirs = _by_path(self._value), _by_path(state_dict)
        if mine.keys() != theirs.keys():
            path = min(mine.keys() ^ theirs.keys(), key=repr)
            raise ValueError(f"{'.'.join(map(str, path))} is only in one of both")
        _assign(list(mine.values()), [theirs[path] for path in mine])


def _arrays(value: Any) -> Tree:
    if isinstance(value, Mapping):
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_arrays(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return np.asarray(value.numpy())


def _by_path(value: Any, path: Path = ()) -> dict[Path, Any]:
    if not isinstance(value, Mapping | list | tuple):
        return {path: value}
    found: dict[Path, Any] = {}
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        found |= _by_path(item, (*path, key))
    return found


def state_of(value: object) -> HasState | None:
    """Return the state of an object in a durable state. None: it is kept by value, if possible."""
    if isinstance(value, tf.keras.Model):
        return ModelState(value)
    if _is_optimizer(value):
        return OptimizerState(value)
    if isinstance(value, tf.Variable | list | tuple | Mapping):
        leaves = _by_path(value).values()
        if leaves and all(isinstance(leaf, tf.Variable) for leaf in leaves):
            return Variables(value)
    return value if isinstance(value, HasState) else None


def trained_of(value: object) -> list[Array] | None:
    """Return what is equal on all ranks at each commit: a model's trainable weights, or an optimizer's variables."""
    if isinstance(value, tf.keras.Model):
        return _read(value.trainable_weights)
    if _is_optimizer(value):
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
