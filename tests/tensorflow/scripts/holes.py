"""A plain script of Elastic Horovod's in which rank 1 is lost once, at the place that the argument names."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from pace import Pace

STEPS = 12
pace = Pace.from_environment()
place = sys.argv[1]


def die_here(at: str) -> None:
    """Once in the whole run, in the world of three."""
    died = Path(pace.folder, "died")
    if at == place and hvd.rank() == 1 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class State(hvd.elastic.TensorFlowKerasState):
    def sync(self) -> None:
        die_here("sync")
        super().sync()


def on_reset() -> None:
    die_here("reset callback")
    hvd.allreduce(tf.ones(1), name="after reset")


def operations() -> None:
    die_here("grouped allreduce")
    hvd.grouped_allreduce([tf.ones(1), tf.ones(2)], name="grouped")
    die_here("reduce-scatter")
    hvd.reducescatter(tf.ones(6), name="scattered")
    die_here("alltoall")
    hvd.alltoall(tf.ones(hvd.size()), name="alltoall")
    if place == "another error":
        tf.io.read_file(pace.folder)  # It is a folder.
    if place == "unknown error":
        raise tf.errors.UnknownError(None, None, "the disk is on fire")


def main() -> None:
    hvd.init()
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    state = State(model, optimizer, step=0)
    state.register_reset_callbacks([on_reset])
    hvd.allreduce(tf.ones(1), name="after reset")  # A newcomer's part in it.

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            operations()
            state.model.variables[1].assign_add([1.0])
            state.step += 1
            pace.note(step=state.step, rank=hvd.rank(), size=hvd.size())
            state.commit()
            pace.hold(state)

    train(state)
    pace.note(done=state.step, rank=hvd.rank(), weights=[float(state.model.variables[1][0])])


main()
