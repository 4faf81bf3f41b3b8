"""Training by Keras whose state counts how often each shard is in it: by Shards of either mode.

The counts are weights of a model, so they are kept, sent and averaged as any model's are.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from exact_gradients import one_thread
from horovod.tensorflow import Sum, allreduce
from pace import WORKER, Pace

from elastic_runtime import Shards
from elastic_runtime.tensorflow import DurableState

COUNT, PER_STEP, SECONDS, BY = json.loads(os.environ["SHARDS"])
"""Shards, those of a step (or seconds between meetings), seconds that one takes, and what gives them."""
SLOWNESS = 1 + 2 * (int(os.environ[WORKER].rpartition("-")[2], 36) % 2)
"""Every other worker is three times as slow."""
pace = Pace.from_environment()


def counting() -> Any:
    """A model whose only weights are a count of each shard."""
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input((COUNT,)), dense])


def train_on(index: int, model: Any, step: int) -> None:
    """One shard."""
    pace.note(took=index, step=step, rank=hvd.rank())
    time.sleep(SECONDS * SLOWNESS)
    one = np.zeros((COUNT, 1), np.float32)
    one[index] = 1
    model.weights[0].assign_add(one)


def add(total: Any, own: Any) -> float:
    """What all ranks have counted, to the total; the own counts begin anew. Returns their sum."""
    summed = allreduce(own.weights[0] * 1, op=Sum, name="counts")
    total.weights[0].assign_add(summed)
    own.weights[0].assign(tf.zeros_like(summed))
    return float(tf.reduce_sum(summed))


def main() -> None:
    one_thread()
    hvd.init()
    total, own = counting(), counting()
    state = DurableState(total, shards=[])
    if BY == "asynchronous":
        shards = Shards(COUNT, mode=BY, every=PER_STEP, seed=0, state=state, local=[own])
    else:
        shards = Shards(COUNT, per_step=PER_STEP, seed=0, state=state)

    @hvd.elastic.run
    def train(state: Any) -> None:
        pace.hold(state)
        own.weights[0].assign(tf.zeros_like(own.weights[0]))
        for step in shards:
            for shard in step:
                train_on(shard.index, own, step.step)
            if BY == "asynchronous":
                step.meet()
            assert add(total, own) == step.size, "the state is to have what its position says"
            pace.note(met=step.step, size=step.size, mine=step.taken)
            state.commit()
            pace.hold(state)

    train(state)
    pace.note(counts=total.get_weights()[0].flatten().astype(int).tolist())


main()
