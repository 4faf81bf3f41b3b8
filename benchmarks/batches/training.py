"""One rank of a training on handwritten digits that stands before given epochs until the world has the size for them.

Rank 0 writes a line of JSON per step, and one per epoch, to ``notes.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch.elastic import ElasticSampler
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from digits.model import DigitsNet, distort
from digits.shards import TEST, TRAIN, Shard, read_shard
from elastic_runtime.torch import DurableState, GlobalBatches, MicroBatches, WorldScaling

BASE = 2
"""World size for which the rate was chosen."""
BATCH = 64
"""Samples of a step in a world of that size."""
MICRO = 8
"""Samples of a micro-batch."""
RATE = 0.01
WARMUP = 40
"""Steps."""
LOOK = 0.02
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """From the command line."""

    folder: Path
    """For notes, and for the files ``at-EPOCH`` by which a size is asked for."""
    shards: Path
    epochs: int
    plan: dict[int, int]
    """Epoch (from 0) to the world size from its start on."""
    batch: str
    """``stays``, ``micro`` (it stays, in micro-batches), ``grows`` (the rate stays), ``linear`` or ``sqrt`` (the rate
    grows with it)."""


class Training:
    """What both kinds of training share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.train, self.test = (in_double(read_shard(settings.shards / name)) for name in (TRAIN, TEST))
        self.dataset = TensorDataset(self.train.images, self.train.labels, torch.arange(len(self.train)))
        self.model = DigitsNet(width=16)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=self.model.named_parameters())

    def loss(self, data: Any, seed: int) -> torch.Tensor:
        """Mean over this rank's samples, which are distorted in a way that depends on the seed."""
        images, labels, indices = data
        return functional.cross_entropy(self.model(distort(images, indices, len(self.train), seed)), labels)

    def note(self, **what: Any) -> None:
        """Write it down, as rank 0."""
        if hvd.rank() == 0:
            with (self.settings.folder / "notes.jsonl").open("a", encoding="utf-8") as notes:
                notes.write(json.dumps(what) + "\n")

    def note_step(self, step: int, epoch: int, loss: torch.Tensor, samples: int, factor: float) -> None:
        """A collective. ``samples`` are this rank's own."""
        mean, share = hvd.allreduce(torch.stack([loss.detach(), torch.tensor(float(samples))]), name="step").tolist()
        self.note(step=step, epoch=epoch, size=hvd.size(), loss=mean, samples=round(share * hvd.size()), factor=factor)

    def note_epoch(self, epoch: int) -> None:
        """How good the model is after that many epochs."""
        with torch.no_grad():
            loss, accuracy = evaluate(self.model, self.test)
        self.note(epochs=epoch, test_loss=loss, accuracy=accuracy)

    def stand(self, state: DurableState, epoch: int) -> None:
        """Commit until the world has the size that this epoch begins with; asks for it."""
        if epoch in self.settings.plan:
            (self.settings.folder / f"at-{epoch}").touch()
            while hvd.size() != self.settings.plan[epoch]:
                time.sleep(LOOK)
                state.commit()


def in_double(shard: Shard) -> Shard:
    """The same images in double precision."""
    return Shard(shard.images.double(), shard.labels)


def evaluate(model: DigitsNet, shard: Shard) -> tuple[float, float]:
    """Mean loss and accuracy."""
    logits = model(shard.images)
    hits = (logits.argmax(dim=1) == shard.labels).float()
    return float(functional.cross_entropy(logits, shard.labels)), float(hits.mean())


def train_with_batch_that_stays(training: Training) -> None:
    """``GlobalBatches``: the same samples in each step, at the same rate."""
    state = DurableState(model=training.model, optimizer=training.optimizer)
    batches = GlobalBatches(training.dataset, size=BATCH, seed=0, state=state, epochs=training.settings.epochs)
    _train_by_steps(training, state, batches, lambda batch: [batch])


def train_with_micro_batches(training: Training) -> None:
    """``MicroBatches``: the same samples in each step, too, as whole micro-batches whose gradients are accumulated."""
    state = DurableState(model=training.model, optimizer=training.optimizer)
    count, epochs = BATCH // MICRO, training.settings.epochs
    steps = MicroBatches(training.dataset, MICRO, count, 0, state, optimizer=training.optimizer, epochs=epochs)
    _train_by_steps(training, state, steps, lambda step: step)


def _train_by_steps(
    training: Training, state: DurableState, steps: Any, batches_of: Callable[[Any], Iterable[Any]]
) -> None:
    @hvd.elastic.run  # type: ignore[untyped-decorator]  # horovod has no types
    def run(state: DurableState) -> None:
        epoch, position = divmod(state.step, steps.plan.steps_per_epoch)
        if position == 0:
            training.stand(state, epoch)
        for step in steps:
            training.optimizer.zero_grad()
            total, samples = torch.zeros(()), 0
            for batch in batches_of(step):
                loss = training.loss(batch.data, batch.step) * batch.weight
                torch.autograd.backward(loss)
                total, samples = total + loss.detach(), samples + len(batch.indices)
            training.optimizer.step()
            training.note_step(step.step, step.epoch, total, samples, 1.0)
            if step.ends_epoch:
                training.note_epoch(step.epoch + 1)
            state.commit()
            if step.ends_epoch:
                training.stand(state, step.epoch + 1)

    run(state)


def train_with_batch_that_grows(training: Training) -> None:
    """Horovod's ``ElasticSampler``: each rank keeps its batch size, so a larger world takes fewer, larger steps."""
    settings, per_rank = training.settings, BATCH // BASE
    scaling = None
    if settings.batch != "grows":
        scaling = WorldScaling(base=BASE, rule=settings.batch, warmup=WARMUP)
    sampler = ElasticSampler(training.dataset)
    state = DurableState(
        model=training.model, optimizer=training.optimizer, sampler=sampler, scaling=scaling, epoch=0, batch=0
    )

    @hvd.elastic.run  # type: ignore[untyped-decorator]  # horovod has no types
    def run(state: DurableState) -> None:
        while state.epoch < settings.epochs:
            if state.batch == 0:
                training.stand(state, state.epoch)
            for data in DataLoader(training.dataset, batch_size=per_rank, sampler=sampler):
                training.optimizer.zero_grad()
                loss = training.loss(data, state.step)
                torch.autograd.backward(loss)
                factor = take_step(training.optimizer, scaling, state.step + 1)
                training.note_step(state.step + 1, state.epoch, loss, len(data[0]), factor)
                sampler.record_batch(state.batch, per_rank)
                state.batch += 1
                state.step += 1
                state.commit()
            state.epoch, state.batch = state.epoch + 1, 0
            training.note_epoch(state.epoch)
            sampler.set_epoch(state.epoch)
            state.commit()

    run(state)


def take_step(optimizer: Any, scaling: WorldScaling | None, step: int) -> float:
    """The optimizer's step, scaled if so wished. Returns the factor."""
    if scaling is None:
        optimizer.step()
        return 1.0
    with scaling.applied(optimizer, step) as factor:
        optimizer.step()
    return factor


def main() -> None:
    """One rank, from its start to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--plan", type=lambda text: {int(at): size for at, size in json.loads(text).items()})
    parser.add_argument("--batch", choices=("stays", "micro", "grows", "linear", "sqrt"), required=True)
    settings = Settings(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    # A network with maxima in it enlarges differences of rounding, in single precision from 1e-7 to 1e-2 in fifty
    # steps: a run in other worlds would then part from the first as one with another seed does.
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    hvd.init()
    training = Training(settings)
    ways = {"stays": train_with_batch_that_stays, "micro": train_with_micro_batches}
    ways.get(settings.batch, train_with_batch_that_grows)(training)


if __name__ == "__main__":
    main()
