"""Training with our helpers: DurableState and GlobalBatches, with a ledger of what every rank trained on.

By Horovod or by torch.distributed, whichever its ranks are started by. An argument is a number of megabytes that the
checkpoints hold besides. ``DEVICE`` is where it trains (``cuda``).
"""

from __future__ import annotations

import os
import sys

import torch
from exact_engines import kit
from pace import Pace
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from elastic_runtime.torch import DurableState, GlobalBatches, report

SAMPLES, BATCH = 100, 16  # 7 steps an epoch; the last has 4 samples, so that shares are uneven, or empty


def dataset() -> TensorDataset:
    made = torch.Generator().manual_seed(3)
    features = torch.randn(SAMPLES, 8, generator=made)
    return TensorDataset(features, features[:, :1] * features[:, 1:2] + features[:, 2:3])


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # So that rounding, which grows with the steps, is far below any difference.
    engine = kit()
    device = torch.device(os.environ.get("DEVICE", "cpu"))

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    ballast = {"ballast": torch.zeros(int(sys.argv[1]) << 20, dtype=torch.uint8)} if sys.argv[1:] else {}
    state = engine.state(build, commit_every=pace.state_every, **ballast)
    data = dataset()
    batches = GlobalBatches(data, size=BATCH, seed=7, state=state, epochs=pace.epochs)

    @engine.run
    def train(state: DurableState) -> list[float]:
        pace.note(
            joined=state.step, **engine.places(),
            worker=os.environ["ELASTIC_RUNTIME_WORKER"], slot=os.environ["ELASTIC_RUNTIME_SLOT"],
            devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )  # fmt: skip
        parallel = engine.parallel(state)
        pace.hold(state)
        for batch in batches:
            features, targets = (each.to(device) for each in batch.data)
            if pace.zeroes == "first":
                state.optimizer.zero_grad()
            loss = mse_loss(parallel(features), targets) * batch.weight
            pace.fall(batch.step)
            loss.backward()
            state.optimizer.step()
            if pace.zeroes == "last":
                state.optimizer.zero_grad()
            total, places = engine.mean(loss.detach()), engine.places()
            pace.note(
                step=batch.step, epoch=batch.epoch, rank=places["rank"], size=places["size"],
                samples=batch.indices.tolist(), loss=total,
            )  # fmt: skip
            if batch.step % pace.commit_every == 0:
                state.commit()
                report(loss=total)
            pace.hold(state)
            if pace.zeroes == "after":
                state.optimizer.zero_grad()
        return engine.weights(state)

    weights = train(state)
    pace.note(done=state.step, rank=engine.places()["rank"], weights=weights)


main()
