"""Training by Horovod and Keras' ``fit``, with weights that are the same to the last bit in worlds of any size.

The model's ``train_step`` gives Horovod's optimizer gradients that are summed exactly; a callback keeps an EMA.
"""

from __future__ import annotations

import time
from typing import Any

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from exact_gradients import BATCH, build, dataset, digests, numbers, one_thread, rounded
from horovod.tensorflow import Sum
from pace import Pace

from elastic_runtime.tensorflow import DurableState, GlobalBatches

pace = Pace.from_environment()


class ExactModel(tf.keras.Sequential):  # type: ignore[misc, unused-ignore]  # Keras has no types
    def train_step(self, data: Any) -> dict[str, Any]:
        features, targets, weights = data
        variables = self.trainable_variables

        def of_sample(sample: Any) -> list[Any]:
            return rounded(self, sample[0][None], sample[1][None])

        kinds = [tf.TensorSpec(each.shape, each.dtype) for each in variables]
        parts = tf.map_fn(of_sample, (features, targets), fn_output_signature=kinds)
        real = tf.cast(weights[0] > 0, tf.float64)  # A rank without a sample has one that weighs nothing.
        total = [tf.reduce_sum(each, axis=0) * real for each in parts]
        with tf.GradientTape() as tape:
            value = tf.add_n([tf.reduce_sum(each * wanted) for each, wanted in zip(variables, total, strict=True)])
        self.optimizer.minimize(value, variables, tape=tape)
        return {"loss": value}


class PacedState(DurableState):
    def commit(self) -> None:
        super().commit()
        pace.hold(self)


class Noting(tf.keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]  # Keras has no types
    """Before each commit: the average moves on, and what the step came to is noted."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_train_batch_end(self, _batch: int, _logs: Any = None) -> None:
        state, step = self._state, self._state.step + 1
        for average, weight in zip(state.ema, state.model.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        found = digests(state, ("model", "optimizer", "ema"), step)
        pace.note(step=step, rank=hvd.rank(), size=hvd.size(), time=time.monotonic(), digests=found)


def main() -> None:
    pace.door()
    one_thread()
    tf.keras.backend.set_floatx("float64")  # As which fit() gives samples.
    hvd.init()
    model = build(kind=ExactModel)
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01), op=Sum))
    state = PacedState(model, ema=[tf.Variable(each) for each in model.weights])
    batches = GlobalBatches(dataset(), size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @hvd.elastic.run  # type: ignore[untyped-decorator, unused-ignore]
    def train(_state: Any) -> None:
        pace.hold(state)
        batches.fit(model, commit_every=pace.commit_every, callbacks=[Noting(state)], verbose=0)

    train(state)
    pace.note(done=state.step, weights=numbers(*model.weights, *state.ema))


main()
