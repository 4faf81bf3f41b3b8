"""Random states of TensorFlow's, by Horovod: see ``random_checks.py``.

What the format of checkpoints has no type for is refused when the state is made.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from random_checks import canonical, check, main

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.tensorflow import DurableState

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTEGERS = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)
REFUSED: tuple[Callable[[], Any], ...] = (
    lambda: tf.Variable([1j]),
    lambda: [tf.Variable("text")],
    lambda: {"a": tf.Variable(1.0), "b": 2},
    tf.keras.metrics.Mean,
    tf.keras.optimizers.Adam,
    tf.keras.optimizers.legacy.Adam,
    lambda: built(tf.keras.optimizers.Nadam()),
    lambda: tf.keras.layers.Dense(1),
    lambda: np.float32(1),
    lambda: np.array([1j]),
    lambda: np.array(["text"]),
    lambda: np.array([1.0], ">f4"),
    lambda: {"a": [np.array([object()])]},
    lambda: tf.zeros(2),
)
"""Makes what no state keeps."""


def built(optimizer: Any) -> Any:
    """With its variables."""
    optimizer.build([tf.Variable(1.0)])
    return optimizer


def encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return None
    return str(value.dtype), value.shape, value.tobytes()


def arrays(value: Any) -> Any:
    """What an object has, by names that do not depend on the code under test."""
    if isinstance(value, tf.keras.Model):
        return value.get_weights()
    if isinstance(value, tf.keras.optimizers.Optimizer | tf.keras.optimizers.legacy.Optimizer):
        found = value.variables() if callable(value.variables) else value.variables
        more = [value.learning_rate, *(getattr(value, name, None) for name in ("loss_scale", "dynamic_counter"))]
        return [each.numpy() for each in (*found, *more) if isinstance(each, tf.Tensor | tf.Variable)]
    if isinstance(value, tf.Variable):
        return np.asarray(value.numpy())
    if isinstance(value, dict):
        return {key: arrays(item) for key, item in value.items()}
    return [arrays(item) for item in value] if isinstance(value, list | tuple) else value


class Nested(tf.keras.layers.Layer):
    """A layer of layers, of which two have weights of the same shapes, trained and not."""

    def __init__(self, width: int, **more: Any) -> None:
        super().__init__(**more)
        self.first, self.second = tf.keras.layers.BatchNormalization(), tf.keras.layers.BatchNormalization()
        self.dense = tf.keras.layers.Dense(width, use_bias=False)

    def build(self, shape: Any) -> None:
        for layer in (self.first, self.second, self.dense):
            layer.build(shape)
        super().build(shape)

    def call(self, data: Any, training: Any = None) -> Any:
        return self.second(self.dense(self.first(data, training=training)), training=training)


class Chosen:
    """What is the same on all ranks of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def model(self) -> Any:
        width, layers = self.random.choice((3, 3, 4)), tf.keras.layers
        dtype = self.random.choice(("float32", "float32", "float64", "bfloat16", "mixed_bfloat16"))
        tied = layers.Dense(width, "tanh", dtype=dtype)
        body = self.random.choice((
            lambda: [layers.Dense(width, use_bias=False, dtype=dtype)],
            lambda: [layers.Dense(5, dtype=dtype), layers.BatchNormalization(dtype=dtype)],
            lambda: [tied, tied, layers.Dense(width, dtype=dtype)],
            lambda: [Nested(width, dtype=dtype)],
            lambda: [layers.Dense(width, trainable=False, dtype=dtype), layers.LayerNormalization(dtype=dtype)],
        ))()  # fmt: skip
        start = given = tf.keras.Input((width,))
        for layer in (*body, layers.Dense(1, dtype=dtype)):
            given = layer(given)
        return tf.keras.Model(start, given)

    def optimizer(self) -> Any:
        kinds = tf.keras.optimizers
        rates = kinds.schedules
        plain = self.random.choice((
            lambda: kinds.SGD(0.1),
            lambda: kinds.SGD(0.1, momentum=0.9, nesterov=True),
            lambda: kinds.Adam(0.1, amsgrad=True),
            lambda: kinds.AdamW(0.1, use_ema=True, ema_overwrite_frequency=2),
            lambda: kinds.RMSprop(0.1, centered=True, momentum=0.1),
            lambda: kinds.Adamax(0.1),
            lambda: kinds.Adagrad(0.1),
            lambda: kinds.Adafactor(0.1),
            lambda: kinds.Ftrl(0.1),
            lambda: kinds.Lion(rates.ExponentialDecay(0.1, 2, 0.9)),
            lambda: kinds.Adam(rates.PiecewiseConstantDecay([2, 4], [0.1, 0.2, 0.3])),
            lambda: kinds.legacy.SGD(0.1, momentum=0.9),
            lambda: kinds.legacy.Adam(0.1, amsgrad=True),
            lambda: kinds.legacy.Nadam(0.1),
        ))()  # fmt: skip
        scaled = self.random.random() < 0.2 and not isinstance(plain, kinds.legacy.Optimizer)
        return tf.keras.mixed_precision.LossScaleOptimizer(plain, dynamic_growth_steps=2) if scaled else plain

    def array(self, values: np.random.Generator) -> Any:
        shape = self.random.choice(((), (0,), (3,), (3, 3), (2, 0, 1)))
        raw = values.standard_normal(shape) * 100
        return self.random.choice((
            lambda: np.asarray(raw).astype(self.random.choice(FLOATS).as_numpy_dtype),
            lambda: np.asarray(raw).astype(np.int64).astype(self.random.choice(INTEGERS).as_numpy_dtype),
            lambda: np.asarray(raw > 0),
            lambda: values.standard_normal((7, 7))[1:4, ::2],
            lambda: np.asfortranarray(values.standard_normal((3, 4))),
            lambda: np.broadcast_to(values.standard_normal((3, 1)), (3, 3)),
        ))()  # fmt: skip

    def tree(self, leaf: Callable[[], Any], depth: int = 0) -> Any:
        kind = self.random.randrange(4 if depth < 3 else 1)
        if kind == 0:
            return leaf()
        found = [self.tree(leaf, depth + 1) for _ in range(self.random.randint(1, 2))]
        return found if kind == 1 else tuple(found) if kind == 2 else dict(zip(("b", 0), found, strict=False))


class Objects:
    """What one rank has made of a seed."""

    def __init__(self, seed: int, rank: int) -> None:
        chosen, own = Chosen(seed), random.Random(seed * 10 + rank)
        tf.keras.utils.set_random_seed(seed * 10 + rank)
        values = np.random.default_rng(seed * 10 + rank)
        self.kept: dict[str, Any] = {}
        self.trained: list[tuple[Any, Any]] = []
        for number in range(chosen.random.randint(1, 2)):
            self._add(number, chosen)
        self.averages = [tf.Variable(each) for each in self.trained[0][0].weights]
        if chosen.random.random() < 0.5:
            self.kept["average"] = self.averages
        self.metric = tf.keras.metrics.Mean()
        if chosen.random.random() < 0.5:
            self.kept["metric"] = self.metric.variables
        for number in range(chosen.random.randrange(4)):
            self.kept[f"variables_{number}"] = chosen.tree(lambda: tf.Variable(chosen.array(values)))
        for number in range(chosen.random.randrange(3)):
            self.kept[f"arrays_{number}"] = chosen.tree(lambda: chosen.array(values))
        self.kept |= {"best": own.random(), "notes": {"a": (own.random(), None), 1: [float("inf"), "x", True]}}
        for step in range(own.choice((0, 0, 1, 3))):
            self.train(seed + step)
        names = list(self.kept)
        chosen.random.shuffle(names)
        refused = chosen.random.choice(REFUSED)
        with pytest.raises(InvalidSettings, match=r"DurableState\.refused"):
            DurableState(refused=refused())
        self.state = DurableState(**{name: self.kept[name] for name in names}, step=own.randrange(100))

    def _add(self, number: int, chosen: Chosen) -> None:
        model, optimizer = chosen.model(), chosen.optimizer()
        self.trained.append((model, optimizer))
        suffix = f"_{number}" if number else ""
        self.kept |= {f"model{suffix}": model, f"optimizer{suffix}": optimizer}
        if number and hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)
        elif number:
            optimizer._create_all_weights(model.trainable_variables)

    def train(self, seed: int) -> None:
        data = np.random.default_rng(seed)
        for model, optimizer in self.trained:
            given = data.standard_normal((4, model.input_shape[1])).astype(np.float32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.cast(model(given, training=True), tf.float32)))
                scales = isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
                scaled = optimizer.get_scaled_loss(loss) if scales else loss
            found = tape.gradient(scaled, model.trainable_variables)
            if scales:
                found = optimizer.get_unscaled_gradients(found)
            optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
            self.metric.update_state(loss)
        for average, weight in zip(self.averages, self.trained[0][0].weights, strict=True):
            average.assign(average + (weight - average) / 4)

    def everything(self) -> dict[str, Any]:
        names = ("step", *self.kept)
        encoded: dict[str, Any] = canonical({name: arrays(getattr(self.state, name)) for name in names}, encode)
        return encoded


hvd.init()
main(lambda seed: check(seed, Objects))
