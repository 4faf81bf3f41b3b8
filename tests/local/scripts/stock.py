"""A plain Elastic Horovod script, which knows nothing of this project: TorchState and ElasticSampler.

With the argument ``durable`` its state is wrapped in one line; with ``notice`` it saves a file of its own before
workers are taken, and begins with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.torch.elastic import ElasticSampler, TorchState
from pace import Pace
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 120


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 4), torch.randn(SAMPLES, 1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    sampler = ElasticSampler(data, shuffle=True, seed=1)
    second = torch.nn.Linear(4, 1)
    decaying = torch.optim.AdamW(second.parameters(), lr=0.01, weight_decay=0.5)
    decaying = hvd.DistributedOptimizer(decaying, named_parameters=second.named_parameters(prefix="second"))
    state = TorchState(
        *(model, optimizer), second=second, decaying=decaying, scheduler=scheduler, sampler=sampler, epoch=0, step=0
    )
    state = as_asked(state, pace)

    @hvd.elastic.run
    def train(state: TorchState) -> None:
        pace.note(joined=state.step, rank=hvd.rank(), size=hvd.size())
        pace.hold(state)
        while state.epoch < pace.epochs:
            batches = DataLoader(data, sampler=state.sampler, batch_size=2)
            for number, (indices, features, targets) in enumerate(batches):
                optimizer.zero_grad()
                decaying.zero_grad()
                torch.nn.functional.mse_loss(second(features) + model(features), targets).backward()
                optimizer.step()
                decaying.step()
                state.scheduler.step()
                state.sampler.record_batch(number, 2)
                state.step += 1
                here = [optimizer.param_groups[0]["lr"], float(model.weight.sum()), float(second.weight.sum())]
                pace.note(
                    step=state.step, epoch=state.epoch, rank=hvd.rank(), size=hvd.size(),
                    samples=indices.tolist(), here=here,
                )  # fmt: skip
                state.commit()
                pace.hold(state)
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    train(state)
    pace.note(done=state.step, rank=hvd.rank())


def as_asked(state: TorchState, pace: Pace) -> TorchState:
    if "notice" in sys.argv:
        keep_a_file(state, pace)
    if "durable" in sys.argv:
        from elastic_runtime.torch import make_durable

        return make_durable(state)
    return state


def keep_a_file(state: TorchState, pace: Pace) -> None:
    from elastic_runtime import Notice, notice, on_notice

    own = Path(pace.folder, "own.pt")
    if own.exists():
        kept = torch.load(own, weights_only=True)
        state.model.load_state_dict(kept["model"])
        state.step, state.epoch = kept["step"], kept["epoch"]
        state.sampler.load_state_dict(kept["sampler"])
        state.save()

    @on_notice
    def save(told: Notice) -> None:
        if hvd.rank() == 0:
            new = own.with_suffix(f".{os.getpid()}")
            kept = {"model": state.model.state_dict(), "sampler": state.sampler.state_dict()}
            torch.save({**kept, "step": state.step, "epoch": state.epoch}, new)
            new.rename(own)
        asked = notice()
        pace.note(told=state.step, rank=hvd.rank(), workers=told.workers, mine=told.mine, everyone=told.everyone,
                  seconds=None if asked is None else (told.deadline - asked).total_seconds())  # fmt: skip


main()
