"""Ranks that sum several large tensors in each step: whenever one is lost, a message is on its way."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from pace import Pace

TENSORS, NUMBERS = 4, 2**21
"""Of a step, and in each: 8 MiB."""


def main() -> None:
    pace = Pace.from_environment()
    hvd.init()
    tensors = [torch.ones(NUMBERS) for _ in range(TENSORS)]
    state = hvd.elastic.TorchState(step=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while state.step < pace.epochs:
            sums = [hvd.allreduce_async(tensor, name=str(each), op=hvd.Sum) for each, tensor in enumerate(tensors)]
            for each in sums:
                assert hvd.synchronize(each)[0] == hvd.size()
            state.step += 1
            pace.note(step=state.step, rank=hvd.rank(), size=hvd.size())
            state.commit()

    train(state)


main()
