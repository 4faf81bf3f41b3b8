"""Training with our helpers for TensorFlow: by Keras' ``fit``, or in a loop of its own. The argument says which."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import DistributedGradientTape
from pace import Pace

from elastic_runtime.tensorflow import DurableState, Elastic, GlobalBatches, MicroBatches

SAMPLES, BATCH = 100, 16  # 7 steps an epoch; the last has 4 samples, so that shares are uneven, or empty
pace = Pace.from_environment()


class PacedState(DurableState):
    def commit(self) -> None:
        super().commit()
        pace.note(step=self.step, rank=hvd.rank(), size=hvd.size())
        self.hold()

    def hold(self) -> None:
        pace.hold(SimpleNamespace(step=self.step, commit=super().commit, check_host_updates=self.check_host_updates))


def data() -> tuple[Any, Any]:
    features = np.random.default_rng(3).normal(size=(SAMPLES, 8)).astype(np.float32)
    return features, features[:, :1] * features[:, 1:2] + features[:, 2:3]


def by_dataset(model: Any, batches: GlobalBatches) -> None:
    """As ``batches.fit``, with the pipeline of ``tf.data``."""
    while batches.step < len(batches):
        epoch = batches.step // batches.plan.steps_per_epoch
        callbacks = [Elastic(batches.state)]
        model.fit(batches.dataset(), initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=callbacks)


def by_hand(model: Any, batches: GlobalBatches) -> None:
    loss = tf.keras.losses.MeanSquaredError()
    for batch in batches:
        features, targets = batch.data
        with tf.GradientTape() as tape:
            value = loss(targets, model(features, training=True)) * batch.weight
        gradients = DistributedGradientTape(tape).gradient(value, model.trainable_variables)
        batches.state.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        batches.state.commit()


def main() -> None:
    pace.door()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.Input((8,)), tf.keras.layers.Dense(16, "tanh"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    way = sys.argv[1]
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    if way != "hand":
        optimizer = hvd.DistributedOptimizer(optimizer)
        model.compile(optimizer, "mse")
    state = PacedState(model, optimizer if way == "hand" else None)
    if way == "micro":
        batches = MicroBatches(data(), size=BATCH // 4, count=4, seed=7, state=state, epochs=pace.epochs)
    else:
        batches = GlobalBatches(data(), size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @hvd.elastic.run
    def train(_state: Any) -> None:
        pace.note(joined=state.step, rank=hvd.rank(), size=hvd.size())
        state.hold()  # The world may have changed in the commit before it.
        if way in ("fit", "micro"):
            batches.fit(model, commit_every=pace.commit_every)
        else:
            {"dataset": by_dataset, "hand": by_hand}[way](model, batches)

    train(state)
    loss = float(tf.reduce_mean(tf.square(model(data()[0]) - data()[1])))
    weights = [float(weight) for array in model.get_weights() for weight in array.flatten()]
    pace.note(done=state.step, rank=hvd.rank(), loss=loss, weights=weights)


main()
