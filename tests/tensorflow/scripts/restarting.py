"""A training that horovodrun knows: ``hvd.init()``, no elastic state, and a checkpoint of its own.

It writes it when it is signalled, and after every ``CHECKPOINT_EVERY`` steps. Its weights are those of any worlds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from exact_gradients import BATCH, SAMPLES, build, gradients_of, numbers, one_thread
from pace import Pace

from elastic_runtime.tensorflow import report

STEPS = -(-SAMPLES // BATCH)
EVERY = int(os.environ.get("CHECKPOINT_EVERY", "0"))
"""Steps from one checkpoint to the next; 0: only those on a signal."""


class Checkpointed:
    """Model and optimizer after so many steps, as the file has them."""

    def __init__(self, pace: Pace) -> None:
        self.model, self.optimizer = build(), tf.keras.optimizers.SGD(0.01, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        self.variables = [*self.model.variables, *self.optimizer.variables]
        self.step, self._asked, self._pace = 0, False, pace
        self._file = Path(pace.folder, "checkpoint.npz")
        if self._file.exists():
            with np.load(self._file) as arrays:
                self.step = int(arrays["step"])
                for number, variable in enumerate(self.variables):
                    variable.assign(arrays[str(number)])
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def commit(self) -> None:
        """Between two steps: if any rank was asked to, all end here."""
        asked = bool(hvd.allreduce(tf.constant(int(self._asked)), op=hvd.Max, name="asked"))
        if hvd.rank() == 0 and (asked or (EVERY and self.step % EVERY == 0)):
            self._save()
        if asked:
            sys.exit(0)

    check_host_updates = commit

    def _save(self) -> None:
        part = self._file.with_suffix(".part")
        with part.open("wb") as stream:
            np.savez(stream, step=self.step, **{str(n): each.numpy() for n, each in enumerate(self.variables)})
        part.replace(self._file)
        self._pace.note(saved=self.step)


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
