"""Learn which points of a square lie in a circle: the training script of all examples in this folder.

One rank of an elastic training with torch.distributed; alone (``python circle.py``) it is a training of one rank. It
takes seconds, and makes up its points.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from elastic_runtime.torch import DurableState, GlobalBatches, elastic, report


def main() -> None:
    """One rank, from its start to its end."""
    options = parse_arguments()
    torch.manual_seed(0)
    points = torch.rand(2000, 2) * 2 - 1
    inside = (points.norm(dim=1) < 0.8).float()
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    state = DurableState(model=model, optimizer=optimizer)
    batches = GlobalBatches(
        TensorDataset(points, inside), size=options.batch_size, seed=0, state=state, epochs=options.epochs
    )
    last_epoch = len(batches) - len(batches) // options.epochs

    @elastic.run
    def train(state: DurableState) -> None:
        """To the last step; called anew for each world."""
        network = DistributedDataParallel(model)
        for batch in batches:
            inputs, labels = batch.data
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(network(inputs).squeeze(1), labels)
            torch.autograd.backward(loss * batch.weight)
            optimizer.step()
            if batch.ends_epoch:
                with torch.no_grad():
                    right = (model(points).squeeze(1) > 0) == inside.bool()
                report(batch.step, loss=loss.detach(), accuracy=right.float().mean())
            state.commit()
            if last_epoch <= batch.step < len(batches):
                wait_for_ranks(state, options.ranks)

    train(state)


def wait_for_ranks(state: DurableState, ranks: int) -> None:
    """Wait until so many ranks train, ten minutes at most. It commits meanwhile, which is where ranks come and go.

    All ranks of a world come here after the same step and see the same size, so that they go on together.
    """
    for _ in range(6000):
        if torch.distributed.get_world_size() >= ranks:
            return
        time.sleep(0.1)
        state.commit()


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of an elastic training on points of a square.")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the points")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of AdamW")
    parser.add_argument("--batch-size", type=int, default=100, help="points per step, over all ranks")
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        help="hold in the last epoch until so many train: a real training lasts long enough to be resized",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
