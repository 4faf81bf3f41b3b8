"""Training by Horovod with TensorFlow, with all that a state may keep, and digests of it.

Adam with a rate that falls and an EMA, and a second model in bfloat16. Weights are the same to the last bit in worlds
of any size.
"""

from __future__ import annotations

import time
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from exact_gradients import BATCH, build, dataset, digests, gradients_of, numbers, one_thread
from horovod.tensorflow import DistributedGradientTape, Sum
from pace import Pace

from elastic_runtime.tensorflow import DurableState, GlobalBatches, report


def summed(variables: list[Any], mine: list[Any]) -> list[Any]:
    """These gradients, added up over all ranks by the means that a script has."""
    with tf.GradientTape() as tape:
        value = tf.add_n([tf.reduce_sum(each * wanted) for each, wanted in zip(variables, mine, strict=True)])
    found: list[Any] = DistributedGradientTape(tape, op=Sum).gradient(value, variables)
    return found


def kept() -> dict[str, Any]:
    """All that the state has."""
    model, half = build(), build("bfloat16")
    second = tf.keras.optimizers.SGD(0.01, momentum=0.5)
    second.build(half.trainable_variables)
    return {
        "model": model,
        "optimizer": tf.keras.optimizers.Adam(0.01),
        "ema": [tf.Variable(each) for each in model.weights],
        "half": half,
        "half_optimizer": second,
        "seen": np.zeros(3, np.int64),
        "best": {"largest": (0, float("-inf")), "norms": []},
    }


def apply(state: Any, gradients: list[Any]) -> None:
    """A step of both models, and of the average."""
    state.optimizer.learning_rate = 0.01 * 0.99**state.step
    state.optimizer.apply_gradients(zip(gradients, state.model.trainable_variables, strict=True))
    for average, weight in zip(state.ema, state.model.weights, strict=True):
        average.assign(0.9 * average + 0.1 * weight)
    narrow = [tf.cast(each, tf.bfloat16) for each in gradients]
    state.half_optimizer.apply_gradients(zip(narrow, state.half.trainable_variables, strict=True))


def note_values(state: Any, gradients: list[Any]) -> None:
    """Into an array and a plain value of the state."""
    largest = max(float(tf.reduce_max(tf.abs(each))) for each in gradients)
    state.seen += np.array([1, state.step, state.step % 7])
    state.best = {
        "largest": max(state.best["largest"], (state.step, largest)),
        "norms": [*state.best["norms"], largest][-3:],
    }


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    one_thread()
    hvd.init()
    entries = kept()
    model = entries["model"]
    gradients = gradients_of(model)
    state = DurableState(**entries, commit_every=pace.state_every)
    batches = GlobalBatches(dataset(), size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @hvd.elastic.run  # type: ignore[untyped-decorator, unused-ignore]
    def train(state: Any) -> None:
        pace.hold(state)
        for batch in batches:
            found = summed(model.trainable_variables, gradients(batch.indices))
            apply(state, found)
            note_values(state, found)
            told = digests(state, entries, batch.step)
            pace.note(step=batch.step, rank=hvd.rank(), size=hvd.size(), time=time.monotonic(), digests=told)
            if batch.step % pace.commit_every == 0:
                state.commit()
                report(epoch=float(batch.epoch))
            pace.hold(state)

    train(state)
    pace.note(done=state.step, weights=numbers(*model.weights, *state.ema, *state.half.weights))


main()
