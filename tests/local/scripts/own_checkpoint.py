"""A training that is restarted for each world: it writes a checkpoint of its own when it is signalled.

And after every so many steps, if ``CHECKPOINT_EVERY`` says how many.

For ``exact_sums.py``; the scripts beside this add up gradients, each by the means of its framework.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from exact_sums import BATCH, SAMPLES, build, dataset, gradient
from pace import Pace
from signalled import Signalled

from elastic_runtime.torch import report
from elastic_runtime.world import current_world

STEPS = -(-SAMPLES // BATCH)


class Checkpointed(Signalled):
    """Model and optimizer."""

    def __init__(self, pace: Pace) -> None:
        self.model = build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        super().__init__(pace, "checkpoint.pt")

    def load(self, file: Path) -> None:
        self.step, model, optimizer = torch.load(file)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    def write(self, file: Path) -> None:
        torch.save((self.step, self.model.state_dict(), self.optimizer.state_dict()), file)


def batch(step: int) -> list[int]:
    """Samples of global step ``step``, from 1, whatever the world."""
    epoch, position = divmod(step - 1, STEPS)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()
    return order[position * BATCH : (position + 1) * BATCH][current_world().rank :: current_world().size]


def train(pace: Pace, state: Checkpointed, give: Callable[[list[torch.Tensor]], None]) -> None:
    """To the end.

    Args:
        pace: of the test.
        state: as the file had it.
        give: has each parameter's ``grad`` be the sum of such gradients over all ranks.
    """
    data, world = dataset(), current_world()
    pace.hold(state)
    while state.step < pace.epochs * STEPS:
        state.optimizer.zero_grad()
        give(gradient(state.model, data, batch(state.step + 1)))
        state.optimizer.step()
        state.step += 1
        pace.note(step=state.step, rank=world.rank, size=world.size, time=time.monotonic())
        report(state.step, epoch=float((state.step - 1) // STEPS))
        state.commit()
        pace.hold(state)
    pace.note(done=state.step, weights=[float(w) for p in state.model.parameters() for w in p.detach().flatten()])
