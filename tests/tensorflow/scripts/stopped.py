"""Ranks with shares of unequal size, whose callbacks decide by an epoch's logs. Executions have several steps."""

from __future__ import annotations

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

from elastic_runtime.tensorflow import DurableState, GlobalBatches

hvd.init()
tf.keras.utils.set_random_seed(0)
features = np.random.default_rng(3).normal(size=(50, 8)).astype(np.float32)
targets = features[:, :1] * features[:, 1:2]
model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(16, "tanh"), tf.keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5))
model.compile(optimizer, "mse", steps_per_execution=3)
state = DurableState(model)
callbacks = [
    hvd.callbacks.MetricAverageCallback(),
    tf.keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.05),
    tf.keras.callbacks.EarlyStopping("loss", patience=3, min_delta=0.01, restore_best_weights=True),
]
GlobalBatches((features, targets), 7, 0, state, epochs=100).fit(model, callbacks=callbacks, verbose=0)
weights = sum(float(np.abs(each).sum()) for each in model.get_weights())
print(f"ended {state.step} {int(optimizer.iterations)} {float(optimizer.learning_rate)} {weights}")
