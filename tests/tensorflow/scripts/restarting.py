"""A training that horovodrun knows: ``hvd.init()``, no elastic state, and a checkpoint of its own.

It writes it when it is signalled, and after every ``CHECKPOINT_EVERY`` steps. Its weights are those of any worlds.
"""

from __future__ import annotations

import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from exact_gradients import BATCH, SAMPLES, build, gradients_of, numbers, one_thread
from pace import Pace
from signalled import Signalled

from elastic_runtime.tensorflow import report

STEPS = -(-SAMPLES // BATCH)


class Checkpointed(Signalled):
    """Model and optimizer."""

    def __init__(self, pace: Pace) -> None:
        self.model, self.optimizer = build(), tf.keras.optimizers.SGD(0.01, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        self.variables = [*self.model.variables, *self.optimizer.variables]
        super().__init__(pace, "checkpoint.npz")

    def load(self, file: Path) -> None:
        with np.load(file) as arrays:
            self.step = int(arrays["step"])
            for number, variable in enumerate(self.variables):
                variable.assign(arrays[str(number)])

    def write(self, file: Path) -> None:
        with file.open("wb") as stream:
            np.savez(stream, step=self.step, **{str(n): each.numpy() for n, each in enumerate(self.variables)})


def batch(step: int) -> list[int]:
    """Samples of global step ``step``, from 1, whatever the world."""
    epoch, position = divmod(step - 1, STEPS)
    order: list[int] = np.random.default_rng(epoch).permutation(SAMPLES).tolist()
    return order[position * BATCH : (position + 1) * BATCH][hvd.rank() :: hvd.size()]


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    one_thread()
    hvd.init()
    state = Checkpointed(pace)
    hvd.broadcast_variables(state.variables, root_rank=0)
    gradients, weights = gradients_of(state.model), state.model.trainable_variables
    pace.hold(state)
    while state.step < pace.epochs * STEPS:
        mine = gradients(batch(state.step + 1))
        found = [hvd.allreduce(each, op=hvd.Sum, name=f"gradient.{n}") for n, each in enumerate(mine)]
        state.optimizer.apply_gradients(zip(found, weights, strict=True))
        state.step += 1
        pace.note(step=state.step, rank=hvd.rank(), size=hvd.size(), time=time.monotonic())
        report(state.step, epoch=float((state.step - 1) // STEPS))
        state.commit()
        pace.hold(state)
    pace.note(done=state.step, weights=numbers(*state.model.weights))


main()
