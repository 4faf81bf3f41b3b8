"""Training with processes of its own, a DataLoader's and a shell's, and a progress bar as tqdm draws it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator

import torch
from exact_engines import kit
from pace import Pace
from torch.utils.data import DataLoader, TensorDataset

from elastic_runtime.torch import DurableState, GlobalBatches

SAMPLES, BATCH = 100, 16
REDRAWN = 50
"""Times that the bar is drawn in a step."""


def endless(loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    return itertools.chain.from_iterable(loader for _ in itertools.count())


def draw(step: int, steps: int) -> None:
    for at in range(REDRAWN):
        sys.stderr.write(f"\r{step}/{steps}, at {at:02d} |{'#' * step:<{steps}}|")
        sys.stderr.flush()


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    torch.set_num_threads(1)
    engine = kit()

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    state = engine.state(build)
    batches = GlobalBatches(TensorDataset(torch.zeros(SAMPLES)), size=BATCH, seed=7, state=state, epochs=pace.epochs)
    data = torch.randn(64, 8)
    loader = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)  # type: ignore[arg-type,var-annotated]
    job = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], stdin=subprocess.DEVNULL)

    @engine.run
    def train(state: DurableState) -> None:
        loaded = endless(loader)
        next(loaded)
        children = [job.pid, *(child.pid for child in multiprocessing.active_children())]
        pace.note(worker=os.environ["ELASTIC_RUNTIME_WORKER"], children=children, **engine.places())
        parallel = engine.parallel(state)
        pace.hold(state)
        for batch in batches:
            state.optimizer.zero_grad()
            (parallel(next(loaded)).square().mean() * batch.weight).backward()
            state.optimizer.step()
            draw(batch.step, pace.epochs * 7)
            state.commit()
            pace.hold(state)

    train(state)
    sys.stderr.write("\n")
    job.kill()


main()
