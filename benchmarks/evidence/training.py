"""One rank of the language model's training, under our launcher or under ``torchrun``.

Ours is a training function with a ``DurableState`` that commits at every step. Under ``torchrun`` rank 0 saves a
snapshot now and then, which the next start loads. Records as in ``torch_training.py``, with the loss of the whole
batch. It ends at the last step of its lesson, or at the one that the file STOP names, which all ranks agree on. The
rank that is 0 at the end saves the weights beside that file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.evidence.language import (  # the path above has to be there first
    WEIGHTS,
    LanguageModel,
    Lesson,
    build,
    learn,
    prepare,
    read_text,
    save_weights,
    share,
    summed,
)
from benchmarks.torch_training import begin, resumed


@dataclass(frozen=True, slots=True)
class Learner:
    """What every step needs."""

    lesson: Lesson
    model: LanguageModel
    optimizer: torch.optim.Optimizer
    text: torch.Tensor
    records: TextIO
    stop: Path

    def step(self, number: int) -> bool:
        """One step, and its record. A collective. Returns whether it was the last."""
        rank, size = dist.get_rank(), dist.get_world_size()
        time.sleep(self.lesson.wait)
        total = summed(self.model, self.text, self.lesson, number, share(self.lesson, rank, size))
        stopped = self.stop.exists() and number >= int(self.stop.read_text())
        whole = torch.cat([total, torch.tensor([float(stopped)])])
        dist.all_reduce(whole)
        loss = learn(self.model, whole[:-1] / self.lesson.parts)
        self.optimizer.step()
        record = {"t": time.time_ns(), "step": number, "rank": rank, "size": size, "entry": 1, "loss": loss}
        self.records.write(json.dumps(record) + "\n")
        return number >= self.lesson.steps or bool(whole[-1])

    def end(self) -> None:
        """Save the weights, as rank 0."""
        if dist.get_rank() == 0:
            save_weights(self.model, self.stop.with_name(WEIGHTS))


def main() -> None:
    """Train to the last step."""
    with begin(__doc__) as (records, stop, given):
        lesson = Lesson.parse(given)
        prepare()
        learner = Learner(lesson, *build(lesson), read_text(), records, stop)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            by_torchrun(learner, stop.with_name("snapshot.pt"))
        else:
            by_us(learner)


def by_us(learner: Learner) -> None:
    """Train under our launcher."""
    from elastic_runtime.torch import DurableState, elastic

    @elastic.run(in_place=True)
    def train(state: DurableState) -> None:
        over = state.step >= learner.lesson.steps
        while not over:
            state.step += 1
            over = learner.step(state.step)
            state.commit()
        learner.end()

    train(DurableState(model=learner.model, optimizer=learner.optimizer))


def by_torchrun(learner: Learner, snapshot: Path) -> None:
    """Train under torchrun, from the newest snapshot."""
    dist.init_process_group("gloo")
    model, optimizer = learner.model, learner.optimizer
    number, over = resumed(model, optimizer, snapshot), False
    while not over:
        number += 1
        over = learner.step(number)
        if number % learner.lesson.snapshot_every == 0 and dist.get_rank() == 0:
            beside = snapshot.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}, beside)
            os.replace(beside, snapshot)
    learner.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
