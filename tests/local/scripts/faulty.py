"""Scripts that go wrong, each in the way that its first argument names."""

from __future__ import annotations

import sys
import time

import horovod.torch as hvd
import torch
from pace import Pace


def one_raises() -> None:
    """Without an elastic loop: those that wait for the third end before it, for its sake."""
    for _ in range(5):
        hvd.allreduce(torch.ones(1), name="step")
    if hvd.rank() == 2:
        hvd.shutdown()
        time.sleep(1.0)
        raise ValueError("no such sample: 4711")
    while True:
        hvd.allreduce(torch.ones(1), name="step")


def stands_still() -> None:
    """The others wait for the second, inside Horovod."""
    if hvd.rank() == 1:
        time.sleep(600)
    hvd.allreduce(torch.ones(1), name="step")


def main() -> None:
    pace, fault = Pace.from_environment(), sys.argv[1]
    pace.door()
    hvd.init()
    if fault == "one_raises":
        one_raises()
    if fault == "stands_still":
        stands_still()
    state = hvd.elastic.TorchState(step=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while True:
            hvd.allreduce(torch.ones(1), name="step")
            state.step += 1
            state.commit()
            if fault == "exits_early" and state.step == 5 and hvd.rank() == 1:
                sys.exit(0)
            if fault == "raises" and state.step == 5:
                raise ValueError("the loss is not a number")

    train(state)


main()
