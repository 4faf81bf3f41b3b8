"""A task whose gradients are summed exactly, as those of ``exact_sums.py``, so that weights are the same in any worlds.

In double precision, on one thread; each sample's gradient is computed on its own and rounded to a multiple of
:data:`GRAIN`. :func:`digest` is of all that is in a value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

SAMPLES, BATCH = 50, 8  # 7 steps an epoch; the last has 2 samples, so that shares are uneven, or empty
GRAIN = 2.0**-24
DIGEST_EVERY = 5
"""Steps."""


def build(dtype: str = "float64", kind: Callable[..., Any] = tf.keras.Sequential) -> Any:
    """The same in every process."""
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    return kind([
        tf.keras.Input((8,), dtype=dtype), layers.Dense(16, "tanh", dtype=dtype), layers.Dense(1, dtype=dtype),
    ])  # fmt: skip


def one_thread() -> None:
    """To be called before anything is computed."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def dataset() -> tuple[Any, Any]:
    features = np.random.default_rng(3).standard_normal((SAMPLES, 8))
    return features, features[:, :1] * features[:, 1:2] + features[:, 2:3]


def gradients_of(model: Any) -> Callable[[Any], list[Any]]:
    """Return a function of samples: the exact sum of their gradients, one tensor a variable."""
    features, targets = map(tf.constant, dataset())
    variables = model.trainable_variables

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]
    def of_sample(index: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features[index : index + 1]) - targets[index : index + 1]))
        return [tf.round(each / GRAIN) * GRAIN for each in tape.gradient(loss, variables)]

    def sums(indices: Iterable[int]) -> list[Any]:
        total = [tf.zeros_like(each) for each in variables]
        for index in indices:
            parts = of_sample(tf.constant(int(index)))
            total = [so_far + part for so_far, part in zip(total, parts, strict=True)]
        return total

    return sums


def numbers(*variables: Any) -> list[float]:
    """All that is in them."""
    return [float(number) for each in variables for number in each.numpy().flatten()]


def digest(value: Any) -> str:
    """Of all that is in it: keys, types, shapes, and every bit of its arrays."""
    sha = hashlib.sha256()
    _feed(sha.update, value)
    return sha.hexdigest()[:12]


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    if isinstance(value, tf.keras.Model):
        _feed(update, value.weights)
    elif isinstance(value, tf.keras.optimizers.Optimizer):
        _feed(update, [*value.variables, value.learning_rate])
    elif isinstance(value, tf.Variable | np.ndarray):
        array = np.asarray(value)
        update(f"{array.dtype}{array.shape}".encode())
        update(array.tobytes())
    elif isinstance(value, dict):
        for key in sorted(value):
            update(f"{key!r}:".encode())
            _feed(update, value[key])
    elif isinstance(value, list | tuple):
        update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(update, item)
    else:
        update(f"{value!r},".encode())
