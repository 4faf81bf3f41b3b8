"""Scripts that go wrong, each in the way that its first argument names."""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch
from pace import Pace


def main() -> None:
    pace, fault = Pace.from_environment(), sys.argv[1]
    pace.door()
    hvd.init()
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
