"""Train a small network on handwritten digits: one rank of an elastic training.

The training script of the DAGs ``digits_elastic`` and ``digits_elastic_torch``; runs under plain ``horovodrun`` and
``torchrun`` too, then without durable checkpoints. Each rank process keeps a ledger of the samples that it has trained
on (:mod:`digits.ledger`).
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from digits.engines import ENGINES, Engine
from digits.ledger import Entry, Ledger
from digits.model import DigitsNet, distort
from digits.shards import TRAIN, read_shard
from elastic_runtime.torch import Batch, DurableState, GlobalBatches, report

WARM_UP_STEPS = 40
REPORT_EVERY = 10
"""Steps."""
HOLD_PAUSE, HOLD_AT_MOST = 0.1, 600.0
"""Seconds between two looks for the file that ends a hold, and after which training goes on without it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """From the command line."""

    engine: str
    shards: Path
    ledger: Path
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    hold_until: Path | None


def main() -> None:
    """One rank, from its start to its end."""
    settings = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    engine = ENGINES[settings.engine]()

    shard = read_shard(settings.shards / TRAIN)
    # Each sample carries its index, so that the ledger holds what came out of the loader, not what was planned.
    dataset = TensorDataset(shard.images, shard.labels, torch.arange(len(shard)))
    model = DigitsNet()
    sgd = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9, weight_decay=5e-4)
    state = DurableState(model=model, optimizer=engine.optimizer(sgd, model))
    with Ledger(settings.ledger) as ledger:
        engine.run(lambda state: train(engine, state, dataset, settings, ledger))(state)


def train(engine: Engine, state: DurableState, dataset: TensorDataset, settings: Settings, ledger: Ledger) -> None:
    """To the last step of the last epoch; called anew for each world."""
    network = engine.parallel(state.model)
    batches = GlobalBatches(dataset, size=settings.batch_size, seed=settings.seed, state=state, epochs=settings.epochs)
    last_epoch = len(batches) - len(batches) // settings.epochs
    for batch in batches:
        set_learning_rate(state.optimizer, settings.learning_rate * schedule(batch.step, len(batches)))
        loss, samples = train_step(network, state, batch, len(dataset), settings.seed)
        rank, size = engine.place()
        try:
            state.commit()
        finally:
            # Word of a new world comes as an exception out of commit, after it has committed the step.
            if samples:
                moment = time.time()
                ledger.append(Entry(batch.step, batch.epoch, rank, size, samples, loss, moment))
        if settings.hold_until and last_epoch <= batch.step < len(batches):
            hold(engine, state, settings.hold_until)


def hold(engine: Engine, state: DurableState, until: Path) -> None:
    """Wait for a file to be there; commits meanwhile, so that ranks can come and go. Each world trains a step before.

    The ranks decide together: one that saw the file a moment before the others would train while they commit.
    """
    deadline = time.monotonic() + HOLD_AT_MOST
    while True:
        if engine.any(until.exists() or time.monotonic() > deadline):
            return
        time.sleep(HOLD_PAUSE)
        state.commit()


def train_step(
    network: nn.Module, state: DurableState, batch: Batch, dataset_size: int, seed: int
) -> tuple[float, tuple[int, ...]]:
    """Update the model once.

    Returns:
        The mean loss of this rank's samples, and which they were: none where the batch has fewer samples than ranks.
    """
    images, labels, indices = batch.data
    logits = network(distort(images, indices, dataset_size, seed << 32 | batch.step))
    loss = functional.cross_entropy(logits, labels)
    state.optimizer.zero_grad()
    torch.autograd.backward(loss * batch.weight)
    state.optimizer.step()
    if batch.step % REPORT_EVERY == 0 or batch.ends_epoch:
        report(batch.step, loss=loss.detach(), accuracy=(logits.argmax(dim=1) == labels).float().mean())
    return loss.item(), tuple(indices.tolist()) if batch.weight else ()


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then half a cosine down to 0.

    A function of the step alone, so that it is right after every resize, restore and resume without a state of its own.
    """
    return min(1.0, step / WARM_UP_STEPS) * (1 + math.cos(math.pi * step / steps)) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def parse_arguments() -> Settings:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of an elastic training on handwritten digits.")
    parser.add_argument("--engine", choices=ENGINES, default="horovod", help="what makes the ranks a world")
    parser.add_argument("--shards", type=Path, required=True, help="folder that digits.shards has written to")
    parser.add_argument("--ledger", type=Path, required=True, help="folder for the ledgers of the rank processes")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the train shard")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, over all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="peak learning rate of SGD")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the order and the distortions")
    parser.add_argument(
        "--hold-until",
        type=lambda text: Path(text) if text else None,
        metavar="FILE",
        help="hold in the last epoch until there is such a file; empty: do not hold",
    )
    return Settings(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
