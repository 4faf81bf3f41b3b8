"""A plain Elastic Horovod script, which knows nothing of this project: TorchState and ElasticSampler."""

from __future__ import annotations

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


main()
