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
    if options.mode == "synchronous":
        train_together(model, options.shards, options.per_step)
    else:
        train_apart(model, options.shards, options.every)


def train_together(model: nn.Module, count: int, per_step: int) -> None:
    """Ranks add up their gradients in each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    state = DurableState(model=model, optimizer=optimizer)
    shards = Shards(count, per_step=per_step, seed=0, state=state)

    @elastic.run
    def train(state: DurableState) -> None:
        """To the last step; called anew for each world."""
        for step in shards:
            optimizer.zero_grad()
            loss = torch.zeros(())
            for shard in step:
                own = loss_of(model, shard.index) / step.size
                torch.autograd.backward(own)
                loss += own.detach()
            add_up(model, loss)
            optimizer.step()
            report(step.step, loss=loss)
            state.commit()

    train(state)


def train_apart(model: nn.Module, count: int, every: float) -> None:
    """Each rank steps by itself, and they average their weights now and then."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # Each rank has its own, which is not in the state.
    state = DurableState(model=model, shards=[])
    shards = Shards(count, mode="asynchronous", every=every, seed=0, state=state)

    @elastic.run
    def train(state: DurableState) -> None:
        """To the last meeting; called anew for each world."""
        for meeting in shards:
            loss = torch.zeros(())
            for shard in meeting:
                optimizer.zero_grad()
                own = loss_of(model, shard.index)
                torch.autograd.backward(own)
                optimizer.step()
                loss += own.detach()
            average(model, meeting.meet())
            torch.distributed.all_reduce(loss)
            report(meeting.step, loss=loss / meeting.size)
            state.commit()

    train(state)


def loss_of(model: nn.Module, index: int) -> Tensor:
    """Mean of that shard."""
    points, inside = read(index)
    return nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), inside)


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


@torch.no_grad()
def average(model: nn.Module, part: float) -> None:
    """Over all ranks, each with its part of the shards."""
    for parameter in model.parameters():
        parameter.mul_(part)
        torch.distributed.all_reduce(parameter)


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training on shards of points of a square.")
    parser.add_argument("--shards", type=int, default=400, help="parts of the data")
    parser.add_argument("--per-step", type=int, default=8, help="shards of a step, over all ranks")
    parser.add_argument("--mode", choices=["synchronous", "asynchronous"], default="synchronous")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between meetings of asynchronous ranks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
