"""Learn which points of a square lie in a circle, shard by shard: the training script of ``shards.py``.

Each shard is a hundred points that its number makes. A real one is a file, or a part of one.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from elastic_runtime import Shards
from elastic_runtime.torch import DurableState, elastic, report


def main() -> None:
    """One rank, from its start to its end."""
    options = parse_arguments()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    state = DurableState(model=model, optimizer=optimizer)
    shards = Shards(options.shards, per_step=options.per_step, seed=0, state=state)

    @elastic.run
    def train(state: DurableState) -> None:
        """To the last step; called anew for each world."""
        for step in shards:
            optimizer.zero_grad()
            loss = torch.zeros(())
            for shard in step:
                points, inside = read(shard.index)
                own = nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), inside) / step.size
                torch.autograd.backward(own)
                loss += own.detach()
            add_up(model, loss)
            optimizer.step()
            report(step.step, loss=loss)
            state.commit()

    train(state)


def read(index: int) -> tuple[Tensor, Tensor]:
    """Points of that shard, and whether they are inside."""
    points = torch.rand(100, 2, generator=torch.Generator().manual_seed(index)) * 2 - 1
    return points, (points.norm(dim=1) < 0.8).float()


def add_up(model: nn.Module, loss: Tensor) -> None:
    """Over all ranks, also those that have had no shard in this step."""
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        torch.distributed.all_reduce(parameter.grad)
    torch.distributed.all_reduce(loss)


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training on shards of points of a square.")
    parser.add_argument("--shards", type=int, default=400, help="parts of the data")
    parser.add_argument("--per-step", type=int, default=8, help="shards of a step, over all ranks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
