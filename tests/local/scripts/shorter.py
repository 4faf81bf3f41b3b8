"""Training whose loop is shorter in rank 1: it ends while the others are about to do their next step.

Arguments: the step at which rank 1 ends, that of the others, and how each trains: by ``run``, as ``elastic.run``, or
without that. Then the word is how it says that it ends: ``finish``, ``with`` or ``nothing``. With ``apart`` it is
``run``, and ranks meet in commits alone.
"""

from __future__ import annotations

import contextlib
import sys

import torch
from exact_engines import kit
from torch.nn.functional import mse_loss

from elastic_runtime.torch import DurableState
from elastic_runtime.world import current_world


def main() -> None:
    short, long, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_default_dtype(torch.float64)
    engine = kit()

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    state = engine.state(build)

    def train(state: DurableState) -> None:
        parallel = engine.parallel(state)
        while state.step < (short if current_world().rank == 1 else long):
            if how != "apart":
                state.optimizer.zero_grad()
                mse_loss(parallel(torch.ones(4, 8)), torch.ones(4, 1)).backward()
                state.optimizer.step()
            state.step += 1
            state.commit()

    if how in ("run", "apart"):
        engine.run(train)(state)
        return
    state.sync()
    with state if how == "with" else contextlib.nullcontext():
        train(state)
    if how == "finish":
        state.finish()


main()
