"""A task whose gradients are summed exactly, as those of ``exact_sums.py``, so that weights are the same in any worlds.

In double precision, on one thread; each sample's gradient is computed on its own and rounded to a multiple of
:data:`GRAIN`. :func:`digests` has one digest for each entry of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import digesting
import numpy as np
import tensorflow as tf

SAMPLES, BATCH = 50, 8  # 7 steps an epoch; the last has 2 samples, so that shares are uneven, or empty
GRAIN = 2.0**-24


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


def rounded(model: Any, features: Any, targets: Any) -> list[Any]:
    """The gradient of one sample, one tensor a variable."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features) - targets))
    return [tf.round(each / GRAIN) * GRAIN for each in tape.gradient(loss, model.trainable_variables)]


def gradients_of(model: Any) -> Callable[[Any], list[Any]]:
    """Return a function of samples: the exact sum of their gradients, one tensor a variable."""
    features, targets = map(tf.constant, dataset())
    variables = model.trainable_variables

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]
    def of_sample(index: Any) -> list[Any]:
        return rounded(model, features[index : index + 1], targets[index : index + 1])

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


def digests(state: Any, names: Iterable[str], step: int) -> dict[str, str] | None:
    """Of these entries of a state; None: not after this step."""
    return None if step % digesting.EVERY else {name: _digest(getattr(state, name)) for name in names}


def _digest(value: Any) -> str:
    if isinstance(value, tf.keras.Model):
        value = value.weights
    elif isinstance(value, tf.keras.optimizers.Optimizer):
        value = [*value.variables, value.learning_rate]
    return digesting.digest(value, _content)


def _content(value: Any) -> tuple[str, bytes] | None:
    if not isinstance(value, tf.Variable | np.ndarray):
        return None
    array = np.asarray(value)
    return f"{array.dtype}{array.shape}", array.tobytes()
